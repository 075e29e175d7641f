// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"fmt"
	"io"
	"reflect"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/nodeapi/internal/optional"
)

// A Pod names a pod in a request.
type Pod struct {
	// Namespace and Name are those of the request's path.
	Namespace, Name string
	// UID is the pod's UID: that of the object which Config.Pods yields, or the
	// one in the path. It is empty if neither is there.
	UID types.UID
}

// String returns namespace/name.
func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// A Container names a container of a pod in a request.
type Container struct {
	Pod
	// Name is the name of the container, init container or ephemeral container.
	Name string
}

// String returns namespace/pod/container.
func (c Container) String() string { return c.Pod.String() + "/" + c.Name }

// LogSource is the capability behind kubectl logs.
type LogSource interface {
	// Logs returns the log of a container. The Server reads until io.EOF or until
	// the client is gone, then calls Close, which must unblock a Read. With
	// opts.Follow the reader must return io.EOF when the container has ended and
	// its output has been read. An error with the method of
	// k8s.io/apimachinery/pkg/api/errors.APIStatus sets the status of the answer.
	Logs(ctx context.Context, container Container, opts LogOptions) (io.ReadCloser, error)
}

// LogOptions are the validated options of a log request. The fields have the
// meaning of the fields of corev1.PodLogOptions.
type LogOptions = corev1.PodLogOptions

// Executor is the capability behind kubectl exec and cp, and behind /run.
type Executor interface {
	// Exec runs a command in a container and returns when the command has ended.
	// ctx is done when the client is gone or the Server stops; Exec must then end
	// the command. An error with a method ExitCode or ExitStatus, such as
	// *exec.ExitError of os/exec, carries the exit code to the client.
	Exec(ctx context.Context, container Container, command []string, streams Streams) error
}

// Attacher is the capability behind kubectl attach, run -it and debug -it.
type Attacher interface {
	// Attach connects the streams to the main process of a container and returns
	// when the process has ended or ctx is done.
	Attach(ctx context.Context, container Container, streams Streams) error
}

// PortForwarder is the capability behind kubectl port-forward.
type PortForwarder interface {
	// PortForward copies bytes between stream and a port of the pod until either
	// side ends or ctx is done; see [Copy]. It is called once for each forwarded
	// connection, concurrently.
	PortForward(ctx context.Context, pod Pod, port uint16, stream io.ReadWriteCloser) error
}

// StatsSource is the capability behind kubectl top: /stats/summary, and
// /metrics/resource unless the backend is a MetricsSource too.
type StatsSource interface {
	// StatsSummary returns the usage of the node and its pods.
	StatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error)
}

// MetricsSource is the capability of a backend that computes the metric families
// of /metrics/resource without a Summary.
type MetricsSource interface {
	// MetricsResource returns the families that metrics-server reads.
	MetricsResource(ctx context.Context) ([]*dto.MetricFamily, error)
}

// Streams are the streams of an exec or attach request. A stream that the client
// did not ask for is nil.
type Streams struct {
	Stdin  io.Reader
	Stdout io.Writer
	// Stderr is nil if TTY is set: a terminal has one output.
	Stderr io.Writer
	// TTY reports whether the client asked for a terminal.
	TTY bool
	// Resize delivers the sizes of the client's terminal if TTY is set, and is nil
	// otherwise. Only the newest size that was not received is kept. The channel
	// is closed when the client is gone.
	Resize <-chan TerminalSize
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Width, Height uint16
}

// backend is the Backend of a Config, by capability.
type backend struct {
	logs    LogSource
	exec    Executor
	attach  Attacher
	forward PortForwarder
	stats   StatsSource
	metrics MetricsSource
}

// optionalMethods are the methods of the capabilities.
var optionalMethods = []optional.Method{
	optional.Of(LogSource.Logs, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Logs") }),
	optional.Of(Executor.Exec, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Exec") }),
	optional.Of(Attacher.Attach, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("Attach") }),
	optional.Of(PortForwarder.PortForward, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("PortForward") }),
	optional.Of(StatsSource.StatsSummary, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("StatsSummary") }),
	optional.Of(MetricsSource.MetricsResource, func(t reflect.Type) (reflect.Method, bool) { return t.MethodByName("MetricsResource") }),
}

func newBackend(b any) (found backend) {
	found.logs, _ = b.(LogSource)
	found.exec, _ = b.(Executor)
	found.attach, _ = b.(Attacher)
	found.forward, _ = b.(PortForwarder)
	found.stats, _ = b.(StatsSource)
	found.metrics, _ = b.(MetricsSource)
	return found
}

// missing returns the error for a capability that the backend does not have.
func missing(what, capability string) error {
	return &statusError{code: 501, msg: fmt.Sprintf("this node does not support %s: its backend does not implement nodeapi.%s", what, capability)}
}

// unset returns the error for an endpoint whose Config field is not set.
func unset(what, field string) error {
	return &statusError{code: 501, msg: fmt.Sprintf("this node does not serve %s: nodeapi.Config.%s is not set", what, field)}
}
