# syntax=docker/dockerfile:1
# Two targets of the same service:
#   docker build --target cpu -t mindeval:cpu .
#   docker build --target ascend --build-arg CANN_IMAGE=<your CANN image with Python 3.11> -t mindeval:ascend .
# The ascend target has been built and run by nobody yet: see docs/ascend.md.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
# No default on purpose: building the ascend target without the argument fails with this name.
ARG CANN_IMAGE=cann-image-was-not-given

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY client client
COPY trainer_hooks trainer_hooks
COPY service service
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS cpu
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[service]" \
    && useradd --create-home --uid 10001 mindeval \
    && install -d -o mindeval -g mindeval /var/lib/mindeval
USER mindeval
ENV MINDEVAL_DATA_DIR=/var/lib/mindeval
VOLUME /var/lib/mindeval
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-m", "mindeval.service.healthcheck", "127.0.0.1:7860"]
ENTRYPOINT ["mindeval", "serve"]
CMD ["--devices", "cpu:1"]

FROM ${CANN_IMAGE} AS ascend
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "$(ls /wheels/*.whl)[service]" \
    && useradd --create-home --uid 10001 mindeval \
    && install -d -o mindeval -g mindeval /var/lib/mindeval
USER mindeval
ENV MINDEVAL_DATA_DIR=/var/lib/mindeval
VOLUME /var/lib/mindeval
EXPOSE 7860
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-m", "mindeval.service.healthcheck", "127.0.0.1:7860"]
ENTRYPOINT ["mindeval", "serve"]
CMD ["--devices", "ascend:0"]
