# closeloop in a container that does not run as root: docker build -t closeloop .
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/closeloop \
 && /opt/closeloop/bin/python -m pip install --no-cache-dir --constraint constraints.txt '.[check,parquet,postgres]'

FROM python:3.12-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap git \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home closeloop \
 && mkdir /project && chown closeloop:closeloop /project
COPY --from=build /opt/closeloop /opt/closeloop
ENV PATH=/opt/closeloop/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /project
EXPOSE 4318
# A container without user namespaces has no bubblewrap: closeloop then uses Landlock, and prints
# which limits it cannot enforce.
ENTRYPOINT ["closeloop"]
CMD ["serve", "--host", "0.0.0.0"]
