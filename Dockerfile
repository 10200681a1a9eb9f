# turnwise with its pinned dependencies.
#   docker build -t turnwise --build-arg TORCH_INDEX=URL .      for CPUs: URL is PyTorch's index of CPU wheels
#   docker build -t turnwise-gpu .                              for GPUs: PyPI's torch brings CUDA along, some gigabytes
#   docker run --rm -v "$PWD/runs:/work/runs" turnwise demo
#   docker run --rm --gpus all -v "$PWD/runs:/work/runs" turnwise-gpu train games-bandit
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# Where torch is taken from, first and by itself; empty: the default index.
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
COPY requirements.txt /tmp/requirements.txt
RUN pip install ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} "$(grep '^torch==' /tmp/requirements.txt)" \
    && grep -v '^torch==' /tmp/requirements.txt > /tmp/rest.txt \
    && pip install -r /tmp/rest.txt
COPY --from=build /wheels /wheels
RUN pip install --no-deps /wheels/*.whl && rm -rf /wheels /tmp/*.txt \
    && useradd --create-home agent && mkdir /work && chown agent /work
USER agent
WORKDIR /work
ENTRYPOINT ["turnwise"]
CMD ["--help"]
