# The command for CPUs: docker build -f docker/cpu.Dockerfile -t moracle . && docker run --rm moracle machines
FROM debian:12-slim AS build
COPY . /moracle
WORKDIR /moracle
RUN rm -rf build && ./dev package && mv build/cpu/*.deb /moracle.deb

FROM debian:12-slim
COPY --from=build /moracle.deb /tmp/moracle.deb
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/moracle.deb && \
    rm -rf /tmp/moracle.deb /var/lib/apt/lists/* && useradd --create-home moracle
USER moracle
EXPOSE 8080
ENTRYPOINT ["moracle"]
CMD ["--help"]
