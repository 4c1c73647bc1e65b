# A CUDA 13 machine for gradcore. Its two commands are the README's: `gradcore train`, which is the default here, and
# `pip install -e '.[test]' && pytest`.
#
#   docker build -t gradcore .
#   docker run --gpus all gradcore
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
RUN python3 -m venv "$VIRTUAL_ENV"

WORKDIR /gradcore
COPY . .
RUN pip install --no-cache-dir -e '.[cuda13,test]'
CMD ["gradcore", "train"]
