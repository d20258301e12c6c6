import com.amazon.randomcutforest.config.ForestMode;
import com.amazon.randomcutforest.config.TransformMethod;
import com.amazon.randomcutforest.parkservices.AnomalyDescriptor;
import com.amazon.randomcutforest.parkservices.ThresholdedRandomCutForest;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;

/** Rows of doubles in, for each its score and its grade out; each is scored before it is learnt. */
public class Score {
    public static void main(String[] arguments) throws Exception {
        int rows = Integer.parseInt(arguments[0]);
        int channels = Integer.parseInt(arguments[1]);
        int shingle = Integer.parseInt(arguments[2]);
        ThresholdedRandomCutForest forest = ThresholdedRandomCutForest.builder()
                .dimensions(channels * shingle)
                .shingleSize(shingle)
                .numberOfTrees(Integer.parseInt(arguments[3]))
                .sampleSize(Integer.parseInt(arguments[4]))
                .randomSeed(Long.parseLong(arguments[5]))
                .forestMode(ForestMode.STANDARD)
                .transformMethod(TransformMethod.NORMALIZE)
                .build();
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        double[] row = new double[channels];
        for (int i = 0; i < rows; i++) {
            for (int j = 0; j < channels; j++) {
                row[j] = in.readDouble();
            }
            AnomalyDescriptor said = forest.process(row, i);
            out.writeDouble(said.getRCFScore());
            out.writeDouble(said.getAnomalyGrade());
        }
        out.flush();
    }
}
