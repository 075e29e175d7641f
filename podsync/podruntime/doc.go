// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package podruntime runs pods with a container runtime: it is the part of a
// kubelet between package podsync, which handles whole pods, and a runtime that
// starts and stops single containers.
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
// A Runtime with more abilities has the methods of [Watcher], [Execer], [LogTailer],
// [Puller], [Sandboxer], [Resizer], [PodResizer], [DiskMeter], [PodChecker] or [Checker].
// [Claims] prepares the devices of resource claims for it. Package podruntimetest tests a
// Runtime.
//
// # Behavior
//
// Init containers run one after the other; a sidecar, an init container with
// restartPolicy Always, must have started before the next one. Regular containers
// then start together. A container that has ended starts again as the restart
// policies of pod and container and the restart rules say, after a back-off. The
// rule action RestartAllContainers and the loss of the sandbox end all containers
// and begin with the first init container. Ephemeral containers run once.
//
// The postStart hook runs first, then the startup probe, then the liveness probe and the
// readiness probe, which goes on until the container has ended. If one of the first three
// fails, the container is ended within its grace period. If a pod ends, all preStop hooks
// run at the beginning, regular containers are asked to end after their hooks, and
// sidecars follow from the last to the first. Every container has at least two seconds
// between the request and the kill.
//
// Volumes of ConfigMaps, Secrets and pod fields follow changes, all files of a
// volume at once. Tokens are renewed after 80 % of their life, or after a day. Secrets,
// tokens and emptyDir volumes with medium Memory are in a tmpfs if this process may mount
// one, which a Runtime in another mount namespace must see; else they are directories, and
// the log says so for Secrets. Files have the kubelet's modes and owners. No container can
// lead the mount of a subPath out of its volume if the Runtime is a [Sandboxer] and this
// process may mount. Volumes of other kinds are those of Config.Volumes; a pod with a volume
// that this node can't mount waits.
//
// Admit rejects a pod with the kubelet's reasons: another OS, a node selector or
// affinity that does not match, a NoExecute taint that is not tolerated, host ports
// that are taken, resources that are used up, and parts of the spec that this package
// or the Runtime does not support. A resize that does not fit is Deferred until there is
// room, and Infeasible if it is larger than the node.
//
// With Config.Evict, a pod is evicted if an emptyDir volume is larger than its limit, or
// if its volumes, writable layers and logs exceed the limits of ephemeral-storage.
//
// # Concurrency
//
// The methods of Provider may be called from any goroutine. Each pod has one goroutine
// that lists its containers, decides and acts; a call of the Runtime that may take long
// runs in a goroutine of its own. A pod waits for another one only for a place among
// Config.MaxStarts, which no pull of an image takes.
//
// # Failure modes
//
// The truth about containers is the list of the Runtime, and the truth about pods is
// Config.Root. So the process can be killed at any moment: the next one goes on with the
// same containers, starts none twice, and loses no exit code. See DESIGN.md.
//
// While the API server is away containers start again with what they have read from it the
// last time, also those of the next process and after a restart of the machine; Config.Sealer
// says what that needs for Secrets and tokens.
//
// While List fails nothing is decided. A container that ran and is no longer listed
// has ended with exit code 137 and reason ContainerStatusUnknown. A full disk delays
// starts, but never the end of a pod. A call that hangs blocks its own container;
// the calls that should be short have a deadline (Config.CallTimeout). A Start that is under
// way when its pod ends goes on for that time.
//
// Containers of pods that are not in Root are removed after a minute.
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
