# One image for runs, the sensor and the UI; docs/deploy.md says how they are started.
FROM debian:13-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates make openjdk-21-jre-headless \
        python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/oncelake
COPY . .
RUN make setup setup-s3 && rm -rf /root/.cache .jars/ivy && useradd --create-home oncelake && mkdir /state \
    && sed 's|: \.dagster|: /state/.dagster|' dagster.yaml > /state/dagster.yaml && chown oncelake /state
USER oncelake
ENV PATH=/opt/oncelake/.venv/bin:$PATH ONCELAKE_STATE=/state DAGSTER_HOME=/state
CMD ["oncelake", "follow"]
