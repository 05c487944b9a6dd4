# One image for a laptop and for a server that runs emulated fleets; real fleets are provisioned by `fedge fleet provision`.
#
#   docker build -t fedge .
#   docker run --rm -v "$PWD/runs:/data/runs" fedge run quickstart
#   docker run --rm -v "$PWD/runs:/data/runs" -p 127.0.0.1:8400:8400 fedge board runs/NAME --listen 0.0.0.0 --port 8400
#
# EXTRAS chooses what is installed; TORCH_INDEX may name PyTorch's CPU index, see docs/how-to/install.md.
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps -w /dist . \
    && sed -n 's/^\([A-Za-z][^ ]*\).*/\1/p' requirements.lock torch.lock > /dist/pins

FROM python:3.11-slim-bookworm
ARG EXTRAS=sim,train
ARG TORCH_INDEX=
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    wheel=$(echo /dist/*.whl) \
    && PIP_EXTRA_INDEX_URL=$TORCH_INDEX pip install --no-cache-dir -c /dist/pins "${wheel}[${EXTRAS}]" \
    && useradd --create-home fedge && install -d -o fedge /data
USER fedge
WORKDIR /data
ENTRYPOINT ["fedge"]
CMD ["--help"]
