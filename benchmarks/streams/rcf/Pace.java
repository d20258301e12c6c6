import com.amazon.randomcutforest.RandomCutForest;
import com.amazon.randomcutforest.parkservices.ThresholdedRandomCutForest;
import com.sun.management.OperatingSystemMXBean;
import java.io.DataInputStream;
import java.lang.management.ManagementFactory;

/**
 * Rows of doubles in; out the processor time of the whole virtual machine, in microseconds an
 * event, over the rows after the first ones, which warm it up.
 */
public class Pace {
    public static void main(String[] arguments) throws Exception {
        int n = Integer.parseInt(arguments[0]);
        int channels = Integer.parseInt(arguments[1]);
        int warm = Integer.parseInt(arguments[2]);
        boolean thresholded = arguments[3].equals("thresholded");
        double[][] rows = new double[n][channels];
        DataInputStream in = new DataInputStream(new java.io.BufferedInputStream(System.in, 1 << 20));
        for (double[] row : rows) {
            for (int j = 0; j < channels; j++) {
                row[j] = in.readDouble();
            }
        }
        ThresholdedRandomCutForest judge = ThresholdedRandomCutForest.builder()
                .dimensions(channels).shingleSize(1).numberOfTrees(50).sampleSize(256).randomSeed(0)
                .build();
        RandomCutForest plain = RandomCutForest.builder()
                .dimensions(channels).shingleSize(1).numberOfTrees(50).sampleSize(256).randomSeed(0)
                .build();
        OperatingSystemMXBean machine =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long began = 0;
        double sum = 0;
        for (int i = 0; i < n; i++) {
            if (i == warm) {
                began = machine.getProcessCpuTime();
            }
            if (thresholded) {
                sum += judge.process(rows[i], i).getRCFScore();
            } else {
                sum += plain.getAnomalyScore(rows[i]);
                plain.update(rows[i]);
            }
        }
        System.out.println((machine.getProcessCpuTime() - began) / 1e3 / (n - warm));
        System.err.println(sum);
    }
}
