# One image for every role: topics, feed, pipeline, console. Each file that is installed is known by
# its hash; the native core is compiled here.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends cargo
WORKDIR /src
COPY deploy/image.txt ./
RUN python -m venv /opt/rejex \
 && /opt/rejex/bin/pip install --no-cache-dir --require-hashes --requirement image.txt
COPY pyproject.toml README.md LICENSE ./
COPY rejex_stream rejex_stream
COPY connectors connectors
COPY native native
RUN /opt/rejex/bin/pip install --no-cache-dir --no-deps . ./native

FROM python:3.13-slim
LABEL org.opencontainers.image.title="rejex-stream" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/rejex /opt/rejex
# Last bits of a fit depend on the number of BLAS threads: one, everywhere.
ENV PATH=/opt/rejex/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
RUN useradd --uid 10001 --create-home rejex && mkdir /var/lib/rejex && chown rejex /var/lib/rejex
USER rejex
WORKDIR /var/lib/rejex
ENTRYPOINT ["rejex-stream"]
CMD ["--help"]
