// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podruntime runs pods with a container runtime. Like a kubelet, it decides
// which containers of a pod start, restart and stop. It is the part between package
// podsync, which handles whole pods, and a runtime, which handles single containers.
//
// # Usage
//
// Write a [Runtime] of four methods, make a [Provider] with it, and give that to a
// podsync.Controller. Both run at the same time:
//
//	provider, err := podruntime.New(podruntime.Config{
//		Runtime:     runtime,
//		Root:        "/var/lib/node",
//		Environment: resolver, // of package podenv
//		HostIPs:     []string{"192.0.2.1"},
//	})
//	...
//	pods, err := podsync.New(podsync.Config{Client: core, Provider: provider, NodeName: "node-1"})
//	...
//	group.Go(provider.Run)
//	group.Go(pods.Run)
//
// A Runtime may also implement [Watcher], [Execer], [LogTailer], [Puller], [Sandboxer],
// [Resizer], [PodResizer], [DiskMeter], [PodChecker] or [Checker]. [Claims] prepares the
// devices of resource claims for it. Package podruntimetest tests a Runtime.
//
// # Behavior
//
// Init containers run one after the other. A sidecar (an init container with
// restartPolicy Always) must have started before the next one. Regular containers
// then start together. A container that has ended is restarted after a backoff, if the
// restart policies of pod and container and the restart rules say so. The rule action
// RestartAllContainers and the loss of the sandbox end all containers, and the pod begins
// again with the first init container. Ephemeral containers run once.
//
// The postStart hook runs first, then the startup probe. Then the liveness and readiness
// probes begin; the readiness probe continues until the container has ended. If the hook,
// the startup probe or the liveness probe fails, the container is stopped within its grace
// period. When a pod is stopped, all preStop hooks start at once. Each regular container is
// asked to end after its hook, and then the sidecars from the last to the first. Every
// container has at least two seconds before it is killed.
//
// Volumes of ConfigMaps, Secrets and pod fields follow changes, and all files of a
// volume change at once. Tokens are renewed after 80 % of their life, or after a day. Files
// have the kubelet's modes and owners. Secrets, tokens and emptyDir volumes with medium
// Memory are in a tmpfs if this process may mount one; a Runtime in another mount namespace
// must see that mount. Otherwise they are plain directories, and a log line warns if there
// are Secrets in them. A container can't use a subPath to reach files outside of the volume
// if the Runtime is a [Sandboxer] and this process may mount. Config.Volumes mounts volumes
// of other kinds. A pod waits while a volume can't be mounted.
//
// Admit rejects a pod with the kubelet's reasons: it needs another OS, its node selector or
// affinity does not match, it does not tolerate a NoExecute taint, its host ports are taken,
// the node has too few resources, or this package or the Runtime does not support a part of
// its spec. A resize that does not fit is Deferred until there is room, and Infeasible if it is
// larger than the node. With Config.Evict, a pod is evicted if an emptyDir volume is larger
// than its limit, or if the pod exceeds the limits of ephemeral-storage.
//
// # Concurrency
//
// The methods of Provider may be called from any goroutine. Each pod has one goroutine
// that lists its containers and decides. Calls of the Runtime that may take long run in
// other goroutines. A pod waits for other pods only if Config.MaxStarts containers are
// already starting. Image pulls do not count. At most 32 containers of one pod are pulled and started
// at once.
//
// # Failure modes
//
// The Runtime's list shows which containers exist, and Config.Root stores which pods do. So
// the process can be killed at any moment: the next one continues with the same
// containers, starts none twice, and loses no exit code. See DESIGN.md. Containers of pods
// that are not in Root are removed after a minute.
//
// While the API server is away, containers restart with the objects that they have read
// before, even after a restart of the process or the machine. After such a restart, Secrets
// and tokens are there only with Config.Sealer.
//
// If List fails, nothing is decided; a [ListError] is about some pods only. A container that
// was last listed as running and is no longer listed has ended with exit code 137 and reason
// ContainerStatusUnknown. One that was listed as exited keeps its exit code, although it is
// removed. One that ends with the process is described at [ProcessBound].
//
// A full disk delays starts, but never the end of a pod. A call that hangs blocks its own
// container. Calls that should be short have a deadline of two minutes. If a pod is stopped
// while a Start is in flight, the Start may still take that long. Volumes are compared with
// the API once a minute, or with what another pod has read in the last half minute. Disk
// usage is compared with its limits every ten seconds, or less often if that takes long.
//
// # Compatibility
//
// The rules are those of Kubernetes 1.37: sidecars (KEP-753), restart policies and
// rules of containers (KEP-5307, KEP-5532), in-place resize (KEP-1287), environment
// variables from files (KEP-3721). The volumes are emptyDir, hostPath, configMap, secret,
// downwardAPI, projected and those of Config.Volumes.
//
// docs/operations.md has the events.
package podruntime
