// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeapi serves the HTTPS API of a node. It is needed for kubectl logs, exec,
// cp, attach, port-forward, debug and top, for metrics-server, and for Prometheus.
//
// A [Server] authenticates and authorizes each request. It checks that the node has the
// pod and the container, and calls a backend. A backend implements some of [LogSource],
// [Executor], [Attacher], [PortForwarder], [StatsSource] and [MetricsSource]. The package
// is a separate module, because streaming and delegated authentication need modules that
// the rest of the library does not need.
//
// # Usage
//
//	server, err := nodeapi.New(nodeapi.Config{
//		NodeName: "node-1",
//		Backend:  backend, // implements the capabilities that it has
//		Client:   clientset,
//		Pods:     pods.Pods, // of a podsync.Controller
//		Certificate: nodeapi.Certificate{Dir: "/var/lib/node/pki", Hosts: []string{"192.0.2.7"}},
//	})
//	...
//	err = server.Run(ctx)
//
// The Node must report an address (nodestatus.Addresses) and the port
// (nodestatus.KubeletPort), and it should declare what the Server supports:
// nodestatus.DeclaredFeatures(nodeapi.FeatureWebSockets). If a program already has an HTTPS server, it can use the Server
// as an http.Handler; see [Server.ServeHTTP].
//
// # Behavior
//
// Every request is authenticated by a client certificate of the cluster's client CA or
// by a bearer token (TokenReview). Anonymous requests are rejected. Then the Server asks
// the API server, with a SubjectAccessReview, whether the client has the permission in this
// table. The permission nodes/proxy is enough for all paths except for stats and metrics:
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
// If the backend does not have a capability, the answer is 501 with its name. The answer
// is 404 for an unknown pod or container, 400 for a malformed request, 422 for an invalid
// log option, and 429 if there are too many streams (see [MaxStreams]). If an error
// of the backend is an APIStatus of package k8s.io/apimachinery/pkg/api/errors, the answer
// has that status.
//
// Exec and attach support SPDY (v4.channel.k8s.io to v2) and WebSocket (v5.channel.k8s.io
// and older). Port-forward supports SPDY, SPDY in a WebSocket, which is kubectl's default, and
// the channels of a WebSocket. At most 256 KiB of input of a connection are buffered.
// The context of a command is canceled when the client closes the connection. A followed log
// ends when the backend's reader ends or the client closes the connection. It also ends
// when the status of the pod has shown that the container has ended, and the backend has
// returned no bytes for 5 s.
//
// # Concurrency
//
// All methods may be called concurrently. The goroutines of requests call the backend,
// Pods, checks and hooks, many at a time.
//
// # Failure modes
//
// If the API server can't be reached, permissions that were granted less than five
// minutes ago are still valid, and so are tokens that were checked less than two minutes
// ago. Other requests get 503. Requests with a client certificate also get 503 until a
// client CA was loaded. If no signer is configured, or the signer has not issued a
// certificate yet, the Server uses a self-signed certificate and logs the consequences. If
// a file with a certificate or a CA can no longer be read, its previous content is used. A
// panic in a callback ends its request with 500, and ErrorHandler gets the stack.
//
// Linux shows that a client is gone even if a command does not read its input. The Server
// checks that every 15 s. An API server that translates WebSockets to SPDY hides its clients:
// then the command continues until it writes, or until [Config.StreamIdleTimeout]. Declare
// [FeatureWebSockets] to get the clients' own connections.
//
// # Compatibility
//
// The package needs k8s.io modules v0.37, and works with API servers of all supported
// versions. A Node should declare [FeatureWebSockets]; API servers of v1.36 and later use it.
//
// docs/operations.md has the metrics, log lines and permissions.
package nodeapi
