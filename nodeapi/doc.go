// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeapi serves the HTTPS API of a node: the server behind kubectl logs,
// exec, cp, attach, port-forward, debug and top, metrics-server and Prometheus.
//
// A [Server] authenticates and authorizes each request, checks it against the
// pods of the node, and calls a backend: any type that implements some of
// [LogSource], [Executor], [Attacher], [PortForwarder], [StatsSource] and
// [MetricsSource]. The package is a module of its own, because streaming and
// delegated authentication need modules that the rest of the library does not.
//
// # Usage
//
//	server, err := nodeapi.New(nodeapi.Config{
//		NodeName: "node-1",
//		Backend:  backend, // implements the capabilities that it has
//		Client:   clientset,
//		Pods: func(yield func(*corev1.Pod) bool) {
//			for _, info := range pods.All() { // of a podsync.Controller
//				if info.Pod != nil && !yield(info.Pod) {
//					return
//				}
//			}
//		},
//		Certificate: nodeapi.Certificate{Dir: "/var/lib/node/pki", Hosts: []string{"192.0.2.7"}},
//	})
//	...
//	err = server.Run(ctx)
//
// The Node must report an address (nodestatus.Addresses) and the port
// (nodestatus.KubeletPort). A program that has an HTTPS server uses the Server as an
// http.Handler; see [Server.ServeHTTP].
//
// # Behavior
//
// Every request is authenticated by a client certificate of the cluster's client
// CA or by a bearer token (TokenReview); anonymous requests are rejected. Then a
// SubjectAccessReview for this node decides, first for the fine-grained
// subresource, then for nodes/proxy, which does not grant stats and metrics:
//
//	/healthz, /livez, /readyz             get nodes/healthz
//	/pods, /runningpods/                  get nodes/pods
//	/containerLogs/NS/POD/CONTAINER       get nodes/log
//	/exec, /attach, /run, /portForward    create nodes/proxy, also for a GET
//	/stats/summary                        get nodes/stats
//	/metrics, /metrics/{resource,probes}  get nodes/metrics
//	/configz                              get nodes/configz
//	/debug/pprof, other paths             get nodes/proxy
//
// A capability that the backend does not have is answered with 501 and its name,
// an unknown pod or container with 404, a malformed request with 400, an invalid
// log option with 422, and too many streams with 429, of the node, of a pod (a quarter
// of them), of a namespace (half) or of a user (three quarters). An error of the backend that
// is an APIStatus of package k8s.io/apimachinery/pkg/api/errors keeps its status.
//
// Exec, attach and port-forward speak SPDY (v4.channel.k8s.io to v2) and WebSocket
// (v4.channel.k8s.io and older). At most 256 KiB of input of a connection wait for
// their reader. The context of a command ends when its client is gone. A followed log
// ends when its reader does, when its client is gone, or [Config.LogDrain] after
// the container has ended by the status of its pod.
//
// # Concurrency
//
// All methods may be called concurrently. The backend, Pods, checks and hooks are
// called by the goroutines of requests, many at a time.
//
// # Failure modes
//
// If the API server is unreachable, permissions that were granted less than five
// minutes ago still count, and tokens that were checked less than two minutes ago;
// other requests get 503. A client certificate gets 503 too until a client CA was
// loaded. If a signer has not issued a certificate, or none is configured, the Server
// uses a self-signed one and logs the consequences. If a file with a certificate or a
// CA becomes unreadable, the previous content stays in use. A panic of a callback ends
// its request with 500 and goes to ErrorHandler with its stack.
//
// A command that does not read its input, and whose client has sent more of it than
// fits in the buffers, runs on after the loss of its client until it reads, writes or
// ends.
//
// # Compatibility
//
// The package builds with k8s.io modules v0.37 and serves API servers of all
// supported versions. A Node must not declare the feature
// ExtendWebSocketsToKubelet: the Server does not speak v5.channel.k8s.io.
//
// docs/operations.md has the metrics, log lines and permissions.
package nodeapi
