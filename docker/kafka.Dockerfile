# A Kafka broker: the jars and the settings of `kstreams broker start`, for a network of containers.
#
# docker/build builds it on the worker's image, and fills docker/jars first; the context is docker/.
ARG WORKER=kstreams-worker
FROM ${WORKER}

USER root
RUN apt-get update -qq && \
    apt-get install -qq -y --no-install-recommends default-jre-headless && \
    apt-get clean && rm -rf /var/lib/apt/lists/*
# The cache of embedded/jars.py.
ENV XDG_CACHE_HOME=/opt/cache
COPY jars/kafka /opt/cache/kstreams_py/jars
COPY kafka_node.py /opt/kstreams/
USER kstreams

# 9092 is for containers; 29092 is published for clients outside, see KAFKA_OUTSIDE.
EXPOSE 9092 29092
HEALTHCHECK --interval=2s --timeout=10s --start-period=60s --retries=5 \
    CMD ["python3", "/opt/kstreams/kafka_node.py", "health"]
ENTRYPOINT ["tini", "--", "python3", "/opt/kstreams/kafka_node.py"]
CMD []
