// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/internal/optional"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// A ContainerID names one run of a container. The Provider chooses it, so a
// Provider that died during Start finds the container again in List.
type ContainerID struct {
	// Pod is the UID of the pod.
	Pod types.UID
	// Name is the name of the container in the spec of the pod.
	Name string
	// Attempt counts the runs of the container, from 0.
	Attempt int
}

// String returns pod/name/attempt.
func (id ContainerID) String() string {
	return fmt.Sprintf("%s/%s/%d", id.Pod, id.Name, id.Attempt)
}

// A ContainerState is the progress of a container.
type ContainerState int

// The states of a container. They follow one another in this order.
const (
	// ContainerCreated: the container exists and has never run.
	ContainerCreated ContainerState = iota
	// ContainerRunning: the container runs.
	ContainerRunning
	// ContainerExited: nothing of the container runs, and its exit code is known.
	ContainerExited
)

// A Container is a container as a Runtime lists it.
type Container struct {
	// ID is the ID that Start was called with.
	ID ContainerID
	// State is the progress of the container.
	State ContainerState
	// RuntimeID becomes containerID of the container's status. It has the form
	// scheme://id. Optional.
	RuntimeID string
	// ImageID becomes imageID of the container's status. Optional.
	ImageID string
	// StartedAt is the time at which the container began to run. Zero: the Runtime
	// can't say; a container that runs then shows the time at which it was first
	// listed.
	StartedAt time.Time
	// FinishedAt is the time at which it exited.
	FinishedAt time.Time
	// ExitCode is the exit code, 128 plus Signal if a signal ended the container. A Runtime
	// without signals, such as one of WebAssembly modules, reports the code with which the module
	// has exited, 0 if it has returned, 137 if the Runtime has killed it, and 134 after a trap.
	ExitCode int32
	// Signal is the signal that ended the container, or 0.
	Signal int32
	// Reason is one word for the exit. Default: Completed or Error.
	Reason string
	// Message explains the exit. A termination message takes its place.
	Message string
}

// A Mount is a file or a directory of the host that a container sees.
type Mount struct {
	// Volume is the name of the pod's volume; empty for a file of the Provider's
	// own, such as the termination message or /etc/hosts.
	Volume string
	// HostPath is the absolute path on the host.
	HostPath string
	// ContainerPath is the path in the container.
	ContainerPath string
	// ReadOnly forbids writes.
	ReadOnly bool
	// RecursiveReadOnly also forbids writes to mounts below it.
	RecursiveReadOnly bool
	// Propagation is the mount propagation; empty means none.
	Propagation corev1.MountPropagationMode
}

// A ContainerSpec describes a container to start. It belongs to the Runtime.
type ContainerSpec struct {
	// ID names the container.
	ID ContainerID
	// Pod is a copy of the pod.
	Pod *corev1.Pod
	// Container is the container in Pod. An ephemeral container has the same
	// fields.
	Container *corev1.Container
	// Environment has the variables, the command and its arguments, resolved. An
	// empty Command means that of the image.
	Environment podenv.Environment
	// Mounts are the mounts, those with a shorter ContainerPath first.
	Mounts []Mount
	// Hostname is the host name of the pod.
	Hostname string
	// Dir is a directory for the Runtime's own files about this container. It
	// exists, is the same for all runs, and is deleted when the pod is released.
	Dir string
	// Sandbox is the sandbox that the container belongs to, nil if the Runtime is
	// no [Sandboxer].
	Sandbox *Sandbox
}

// StopOptions say how a container ends.
type StopOptions struct {
	// Deadline is the time at which the container is killed if it still runs.
	Deadline time.Time
}

// A Runtime runs single containers. Its methods are called from several
// goroutines, Stop while another Stop or an Exec for the same container is under
// way, but Start and Remove for one container never at the same time.
//
// Containers outlive the process that started them, or end with it, which a [ProcessBound] says: List
// of the next process must return the truth.
type Runtime interface {
	// List returns every container of the pod that has not been removed, or of all
	// pods if pod is empty. An error means that nothing is known; a Runtime must
	// not return a partial list. A [ListError] is about some of the pods only.
	List(ctx context.Context, pod types.UID) ([]Container, error)
	// Start creates the container and starts it. It returns nil
	// if the container runs or has run already. After an error the container
	// must not begin to run. If ctx ends, Start returns soon, and List tells the
	// outcome. Use [StartError] to choose the reason in the container's status, and
	// [ErrMayHaveRun] if an earlier call was cut off.
	Start(ctx context.Context, spec ContainerSpec) error
	// Stop asks the container to end and kills it at opts.Deadline. It may return
	// before the end. The Provider calls it again with an earlier deadline, also
	// while the first call is under way; a later one changes nothing. ctx ends two minutes
	// after the deadline at the latest. A container that has exited or does not exist is no error.
	Stop(ctx context.Context, id ContainerID, opts StopOptions) error
	// Remove deletes a container that does not run, with its exit code and logs.
	// A container that does not exist is no error.
	Remove(ctx context.Context, id ContainerID) error
}

// A ProcessBound is a Runtime whose containers may end with the process, such as one that runs
// WebAssembly modules in it. When Run has returned nil, that is no crash: the next process starts
// them without a back-off, if their restart policy allows that. The run before has exit code 137 and
// the reason ProcessEnded. After the death of a process the containers count as lost, with a
// back-off, because one of them may have caused it.
//
// The next process does not list the containers that have ended so, nor those that had exited
// before. A start that was cut off is repeated unless Start returns [ErrMayHaveRun].
type ProcessBound interface {
	// EndsWithProcess reports whether the containers end with the process. [New] calls it once.
	EndsWithProcess() bool
}

// A Watcher is a Runtime that reports changes. With it [Config.Relist], the time between
// two lists of all containers, is longer by default.
type Watcher interface {
	// Watch calls changed after each change of a container's state, until ctx is
	// done. changed does not block. If Watch returns sooner, it is called again
	// after a second, and every pod is listed.
	Watch(ctx context.Context, changed func(pod types.UID)) error
}

// An Execer is a Runtime that runs commands in running containers, for exec
// probes and exec hooks. Without it pods that have those are rejected.
type Execer interface {
	// Exec runs a command to its end. An error means that the command could not be
	// run or that ctx ended; then nothing of the command is left running.
	Exec(ctx context.Context, id ContainerID, command []string) (ExecResult, error)
}

// An ExecResult is the end of a command.
type ExecResult struct {
	// ExitCode is the exit code.
	ExitCode int32
	// Output is standard output and standard error, or the end of both.
	Output []byte
}

// A LogTailer is a Runtime that can read the end of a container's log. It is used
// for the termination message policy FallbackToLogsOnError.
type LogTailer interface {
	// LogTail returns at most the last limit bytes.
	LogTail(ctx context.Context, id ContainerID, limit int64) ([]byte, error)
}

// A Puller is a Runtime whose containers have images, which it may have to wait for.
type Puller interface {
	// Pull is called before each Start and makes sure that the image of a container is
	// there, as its pull policy says. An error is handled like one of Start. It can take long:
	// it does not count as one of the starts that [Config.MaxStarts] limits, so a slow registry
	// holds up no other pod.
	Pull(ctx context.Context, pod *corev1.Pod, container *corev1.Container) error
}

// A Sandboxer is a Runtime whose containers share a sandbox per pod: namespaces,
// a network, a cgroup. The Provider sets it up before the first container and
// tears it down after the last one.
type Sandboxer interface {
	// SetUpPod makes the sandbox of a pod. It returns the existing one if that is
	// ready.
	SetUpPod(ctx context.Context, spec SandboxSpec) (Sandbox, error)
	// TearDownPod ends the sandbox and frees its addresses, and whatever a SetUpPod that
	// failed has left: it is called for each pod that stops, also if ListPods has no sandbox
	// of it. It keeps what List returns about its containers. A sandbox that does not exist is
	// no error.
	TearDownPod(ctx context.Context, pod types.UID) error
	// RemovePod deletes everything that is left of the pod: sandboxes, containers
	// that do not run, logs. A pod that does not exist is no error.
	RemovePod(ctx context.Context, pod types.UID) error
	// ListPods returns the newest sandbox of the pod, or of every pod if pod is
	// empty. An error means that nothing is known. A [ListError] is about some of the pods only.
	ListPods(ctx context.Context, pod types.UID) ([]Sandbox, error)
}

// A SandboxSpec describes a sandbox to set up.
type SandboxSpec struct {
	// Pod is a copy of the pod.
	Pod *corev1.Pod
	// Hostname is the host name of the pod.
	Hostname string
	// DNS is the content of the pod's resolv.conf.
	DNS DNS
}

// A Sandbox is a sandbox as a Runtime lists it.
type Sandbox struct {
	// Pod is the UID of the pod.
	Pod types.UID
	// ID is the name that the Runtime has given the sandbox. A sandbox that takes
	// the place of another one has another ID.
	ID string
	// Ready says that containers can run in the sandbox.
	Ready bool
	// IPs are the addresses of the pod, the primary one first; empty for a pod in
	// the network of the host.
	IPs []string
}

// A Resizer is a Runtime that changes the resources of running containers. Without
// it a change of resources is reported as infeasible.
type Resizer interface {
	// Resize applies container.Resources, and the limits of the pod for which the
	// container has none: see [ContainerLimit]. pod is a copy of the pod, with container
	// and with the resources that the other containers have or will have. After an error
	// Resize is called again.
	Resize(ctx context.Context, id ContainerID, pod *corev1.Pod, container *corev1.Container) error
}

// A PodResizer is a Resizer whose pods have resources as a whole, such as a cgroup with
// the sum of its containers' limits. Without it a change of spec.resources is reported as
// infeasible.
type PodResizer interface {
	Resizer
	// ResizePod applies the resources of a pod as a whole: see [PodResources]. If grow is
	// true, limits that would become smaller stay as they are. It is called with true
	// before a container of the pod is resized or started with more, and with false when
	// every container that runs has its new resources. SetUpPod, or the first Start of a
	// Runtime without sandboxes, applies those with which a pod begins. After an error
	// ResizePod is called again.
	ResizePod(ctx context.Context, pod *corev1.Pod, grow bool) error
}

// A DiskMeter is a Runtime that measures the disk usage of its containers. Without it
// limits of ephemeral storage count emptyDir volumes, /etc/hosts and termination messages only.
type DiskMeter interface {
	// DiskUsage returns the bytes that each container of a pod has on disk, by name:
	// its writable layer and its logs. See [DirUsage].
	DiskUsage(ctx context.Context, pod types.UID) (map[string]int64, error)
}

// A Checker is a Runtime that can't run every pod.
type Checker interface {
	// Check returns an error that says why the Runtime can never run the pod, or
	// nil. The pod is then rejected with reason Unsupported, or with the error
	// itself if it is a rejection of package podsync.
	//
	// It is also called before each start of an ephemeral container, with a pod that
	// has this container alone. After an error the container waits with reason
	// CreateContainerConfigError, and the pod runs on.
	Check(pod *corev1.Pod) error
}

// A PodChecker is a Runtime that can't run every pod yet, for example not before a resource
// claim is allocated.
type PodChecker interface {
	// CheckPod is called before the pod is accepted, and repeated until it returns nil or a
	// rejection of package podsync. It must take nothing that has to be given back, because
	// the pod may be deleted before it is accepted: SetUpPod of a [Sandboxer], which TearDownPod
	// ends, can do that, and Mount of a [VolumePlugin].
	CheckPod(ctx context.Context, pod *corev1.Pod) error
}

// A VolumePlugin provides the volumes of a kind that this package does not know; see
// Config.Volumes. Its methods are called concurrently, but not for one pod.
type VolumePlugin interface {
	// Mount makes the content of a volume available at path, whose parent directory exists. It
	// is called before the sandbox is set up or the first container starts, again before the
	// first start in a later process, and repeated until it returns nil. An error is the
	// message of the waiting containers and an event FailedMount. ctx ends with the pod.
	Mount(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, path string) error
	// Unmount undoes Mount, also one that failed, that was cut off or that was never called. It
	// is called when all containers have ended, and repeated until it returns nil. The pod has
	// not stopped before that. ctx has a deadline of two minutes.
	Unmount(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, path string) error
}

// A GRPCProber checks the health service of a gRPC server (GRPCAction). It is
// handed in, so that this module does not require grpc. It is called for different
// containers at the same time. A panic is an error of the probe.
type GRPCProber interface {
	// ProbeGRPC returns nil if the service at address is serving.
	ProbeGRPC(ctx context.Context, address, service string) error
}

// ErrMayHaveRun is in the error tree of Start if an earlier call for the same run was
// cut off, by the death of this process or of the runtime, and cannot be told to have had
// no effect. The container must not run and not be listed. The run counts as one that
// was lost: it has ended with exit code 137 and the reason ContainerStatusUnknown, and
// the restart policy decides what follows.
var ErrMayHaveRun = errors.New("the container may have run")

// A ListError is an error of List or ListPods about some pods, such as one whose sandbox does not
// answer. The list is complete for all other pods. The Provider keeps what it knows of a pod in Pods,
// decides nothing about it, and lists it alone until that succeeds. So a list of all pods should not
// wait for one of them for long, whereas a list of one pod may take two minutes.
type ListError struct {
	// Pods has the causes by the UIDs of the pods.
	Pods map[types.UID]error
}

// Error implements error.
func (e *ListError) Error() string {
	var texts []string
	for _, uid := range slices.Sorted(maps.Keys(e.Pods)) {
		texts = append(texts, fmt.Sprintf("pod %s: %v", uid, e.Pods[uid]))
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the causes.
func (e *ListError) Unwrap() []error { return slices.Collect(maps.Values(e.Pods)) }

// A StartError is an error of Start or SetUpPod that chooses the reason in the
// status of the waiting container.
type StartError struct {
	// Reason is in CamelCase, such as ErrImagePull.
	Reason string
	// BackoffReason takes the place of Reason while the next try is held back,
	// such as ImagePullBackOff. Default: Reason.
	BackoffReason string
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *StartError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *StartError) Unwrap() error { return e.Err }

// capabilities are the optional methods of a Runtime, nil if it has none.
type capabilities struct {
	watcher    Watcher
	execer     Execer
	tailer     LogTailer
	puller     Puller
	sandboxer  Sandboxer
	resizer    Resizer
	podResizer PodResizer
	meter      DiskMeter
	checker    Checker
	podChecker PodChecker
	bound      ProcessBound
}

// optionalMethods are the methods of the optional interfaces.
var optionalMethods = []optional.Method{
	optional.Of(Watcher.Watch, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Watch") }),
	optional.Of(Execer.Exec, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Exec") }),
	optional.Of(LogTailer.LogTail, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("LogTail") }),
	optional.Of(Puller.Pull, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Pull") }),
	optional.Of(Sandboxer.SetUpPod, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("SetUpPod") }),
	optional.Of(Sandboxer.TearDownPod, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("TearDownPod") }),
	optional.Of(Sandboxer.RemovePod, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("RemovePod") }),
	optional.Of(Sandboxer.ListPods, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("ListPods") }),
	optional.Of(Resizer.Resize, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Resize") }),
	optional.Of(PodResizer.Resize, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Resize") }),
	optional.Of(PodResizer.ResizePod, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("ResizePod") }),
	optional.Of(DiskMeter.DiskUsage, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("DiskUsage") }),
	optional.Of(Checker.Check, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Check") }),
	optional.Of(ProcessBound.EndsWithProcess, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("EndsWithProcess") }),
	optional.Of(PodChecker.CheckPod, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("CheckPod") }),
}

func capabilitiesOf(r Runtime) (c capabilities) {
	c.watcher, _ = r.(Watcher)
	c.execer, _ = r.(Execer)
	c.tailer, _ = r.(LogTailer)
	c.puller, _ = r.(Puller)
	c.sandboxer, _ = r.(Sandboxer)
	c.resizer, _ = r.(Resizer)
	c.podResizer, _ = r.(PodResizer)
	c.meter, _ = r.(DiskMeter)
	c.checker, _ = r.(Checker)
	c.podChecker, _ = r.(PodChecker)
	c.bound, _ = r.(ProcessBound)
	return c
}
