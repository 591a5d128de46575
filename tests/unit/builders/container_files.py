"""Files with which teams run engines in containers.

They have the form of SGLang's own `docker/compose.yaml` and `docker/k8s-sglang-service.yaml`, and
of the Deployment in vLLM's page "Using Kubernetes".
"""

SECRET = "hf_plantedPLANTED0123"  # noqa: S105 - planted
EAGLE3 = '{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5}'
SGLANG_COMPOSE = """
services:
  sglang:
    image: lmsysorg/sglang:latest
    container_name: sglang
    volumes:
      - ${HOME}/.cache/huggingface:/root/.cache/huggingface
      - ./models:/models
    restart: always
    network_mode: host
    environment:
      HF_TOKEN: <secret>
      SGLANG_LOG_MS: 1
      OTHER: ${OTHER}
    entrypoint: python3 -m sglang.launch_server
    command:
      --model-path /models/target
      --host 0.0.0.0
      --port ${PORT:-30000}
      --context-length 4096
      --attention-backend fa3
    ulimits:
      memlock: -1
    ipc: host
    healthcheck:
      test: ["CMD-SHELL", "curl -f http://localhost:30000/health || exit 1"]
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids: ['0']
              capabilities: [gpu]
  proxy:
    image: nginx
"""
VLLM_KUBERNETES = f"""
apiVersion: v1
kind: Secret
metadata:
  name: hf-token-secret
stringData:
  token: "REPLACE_WITH_TOKEN"
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: vllm-server
spec:
  replicas: 1
  template:
    spec:
      hostIPC: true
      volumes:
      - name: cache-volume
        persistentVolumeClaim:
          claimName: models
      - name: weights
        hostPath: {{ path: /data/weights, type: Directory }}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        command: ["/bin/sh", "-c"]
        args: [
          "vllm serve some/target --trust-remote-code --enable-chunked-prefill --max_num_seqs 16
           --speculative-config '{EAGLE3.replace(chr(34), chr(92) + chr(34))}'"
        ]
        env:
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {{ name: hf-token-secret, key: token }}
        - name: VLLM_LOGGING_LEVEL
          value: DEBUG
        - name: VLLM_API_KEY
          value: {SECRET}
        ports:
        - containerPort: 8000
        resources:
          limits: {{ nvidia.com/gpu: "1" }}
        volumeMounts:
        - {{ mountPath: /root/.cache/huggingface, name: cache-volume }}
        livenessProbe:
          httpGet: {{ path: /health, port: 8000 }}
        readinessProbe:
          httpGet: {{ path: /health, port: 8000 }}
      - name: args
        image: docker.io/lmsysorg/sglang:latest
        command: ["python3", "-m", "sglang.launch_server"]
        args: ["--model-path", "$(MODEL)", "--host", "0.0.0.0", "--port", "30000"]
        env:
        - {{ name: ROOT, value: /weights }}
        - {{ name: MODEL, value: $(ROOT)/target }}
        volumeMounts:
        - {{ mountPath: /weights, name: weights, subPath: v1 }}
---
apiVersion: v1
kind: Service
metadata:
  name: vllm-server
spec:
  ports: [{{ port: 80, targetPort: 8000 }}]
"""
