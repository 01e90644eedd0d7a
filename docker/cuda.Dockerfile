# The command for CPUs and NVIDIA GPUs: docker build -f docker/cuda.Dockerfile -t moracle-cuda .
# docker run --rm --gpus all moracle-cuda machines
ARG CUDA=13.0.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build
COPY . /moracle
WORKDIR /moracle
RUN rm -rf build && ./dev package cuda && mv build/cuda/*.deb /moracle.deb

# `runtime` has cuBLASLt and NCCL, which the command loads where they are installed.
FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04
COPY --from=build /moracle.deb /tmp/moracle.deb
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/moracle.deb && \
    rm -rf /tmp/moracle.deb /var/lib/apt/lists/* && useradd --create-home moracle
USER moracle
EXPOSE 8080
ENTRYPOINT ["moracle"]
CMD ["--help"]
