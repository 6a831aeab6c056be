# A worker with your agents. Put it beside agents.py and requirements.txt:
#
#   docker build -f agents.Dockerfile -t my-agents .

FROM perdure
USER root
COPY requirements.txt /tmp/requirements.txt
RUN /opt/perdure/bin/pip install --no-cache-dir -r /tmp/requirements.txt
COPY agents.py /srv/agents/agents.py
USER perdure
WORKDIR /srv/agents
# A worker has no port for requests; its probes are on the port of its metrics.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9747/readyz', timeout=4)"]
CMD ["worker", "--agents", "./agents.py:agents", "--metrics-port", "9747"]
