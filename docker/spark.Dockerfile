# Readers of committed records: PySpark with its Kafka and Avro jars, and the flights of the demo.
#
# docker/build builds it on the worker's image, and fills docker/jars first; the context is docker/.
ARG WORKER=kstreams-worker
FROM ${WORKER}

USER root
RUN apt-get update -qq && \
    apt-get install -qq -y --no-install-recommends default-jre-headless procps && \
    apt-get clean && rm -rf /var/lib/apt/lists/*
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
RUN PIP_USE_PEP517=1 pip install --no-cache-dir -c /opt/kstreams/constraints.txt 'kstreams_py[demo,spark]'
# The cache of embedded/jars.py.
ENV XDG_CACHE_HOME=/opt/cache
COPY jars/spark /opt/cache/kstreams_py/jars
COPY delays.py departures.py /opt/kstreams/
USER kstreams
WORKDIR /data

ENTRYPOINT ["tini", "--", "python3"]
CMD ["/opt/kstreams/delays.py"]
