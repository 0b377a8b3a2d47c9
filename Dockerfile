# Chronolake with Java, Spark's jars and the clients of S3: it downloads nothing when it runs.
# docs/deploy/containers.md describes it, and tests/packaging/test_image.py runs its steps.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1
COPY deploy/requirements.lock /build/deploy/
RUN python3 -m venv /opt/chronolake \
 && /opt/chronolake/bin/pip install --require-hashes -r /build/deploy/requirements.lock
COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
RUN /opt/chronolake/bin/pip install --no-deps /build

FROM python:${PYTHON}-slim-bookworm
# tini reaps processes that Java and Python workers leave behind.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 chronolake \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/chronolake --create-home chronolake
COPY --from=build /opt/chronolake /opt/chronolake
ENV PATH=/opt/chronolake/bin:/usr/local/bin:/usr/bin:/bin
ENV CHRONOLAKE_JARS=/opt/chronolake/jars
# The archive of Spark's classes halves the start of Java.
RUN python -c "from chronolake import jars, session; jars.paths(session.java_home(), schemes=['s3'])" \
 && python -m chronolake.class_training
USER 10001:10001
WORKDIR /project
ENTRYPOINT ["tini", "--", "chronolake"]
CMD ["up"]
