// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"io"

	dto "github.com/prometheus/client_model/go"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/nodeapi"
)

// The methods by which a virtual-kubelet provider serves kubectl. A provider has
// any of them.
type (
	logProvider interface {
		GetContainerLogs(ctx context.Context, namespace, podName, containerName string, opts vkapi.ContainerLogOpts) (io.ReadCloser, error)
	}
	execProvider interface {
		RunInContainer(ctx context.Context, namespace, podName, containerName string, cmd []string, attach vkapi.AttachIO) error
	}
	attachProvider interface {
		AttachToContainer(ctx context.Context, namespace, podName, containerName string, attach vkapi.AttachIO) error
	}
	forwardProvider interface {
		PortForward(ctx context.Context, namespace, pod string, port int32, stream io.ReadWriteCloser) error
	}
	statsProvider interface {
		GetStatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error)
	}
	metricsProvider interface {
		GetMetricsResource(ctx context.Context) ([]*dto.MetricFamily, error)
	}
)

// newBackend returns the backend of a nodeapi.Server.
func newBackend(provider any, nodeName string) any {
	b := &serverBackend{nodeName: nodeName}
	b.logs, _ = provider.(logProvider)
	b.exec, _ = provider.(execProvider)
	b.attach, _ = provider.(attachProvider)
	b.forward, _ = provider.(forwardProvider)
	b.stats, _ = provider.(statsProvider)
	if metrics, ok := provider.(metricsProvider); ok {
		return &metricsBackend{b, metrics}
	}
	return b
}

// serverBackend answers for capabilities that the provider does not have with an
// error of status 501.
type serverBackend struct {
	nodeName string

	logs    logProvider
	exec    execProvider
	attach  attachProvider
	forward forwardProvider
	stats   statsProvider
}

var (
	_ nodeapi.LogSource     = (*serverBackend)(nil)
	_ nodeapi.Executor      = (*serverBackend)(nil)
	_ nodeapi.Attacher      = (*serverBackend)(nil)
	_ nodeapi.PortForwarder = (*serverBackend)(nil)
	_ nodeapi.StatsSource   = (*serverBackend)(nil)
	_ nodeapi.MetricsSource = (*metricsBackend)(nil)
)

// unsupported is the answer for a method that the provider does not have.
func unsupported(method string) error {
	return &apierrors.StatusError{ErrStatus: apierrors.NewGenericServerResponse(501, method, schema.GroupResource{}, "", "the provider has no method "+method, 0, true).ErrStatus}
}

// asStatus gives the errors of virtual-kubelet's errdefs their HTTP status. They
// are known by their methods.
func asStatus(err error) error {
	var invalid interface{ InvalidInput() bool }
	switch {
	case err == nil:
		return nil
	case IsNotFound(err):
		notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
		notFound.ErrStatus.Message = err.Error()
		return notFound
	case errors.As(err, &invalid) && invalid.InvalidInput():
		return apierrors.NewBadRequest(err.Error())
	}
	return err
}

// Logs implements nodeapi.LogSource.
func (b *serverBackend) Logs(ctx context.Context, c nodeapi.Container, opts nodeapi.LogOptions) (io.ReadCloser, error) {
	if b.logs == nil {
		return nil, unsupported("GetContainerLogs")
	}
	if *opts.Stream != "All" {
		return nil, apierrors.NewBadRequest("the provider can't tell stdout and stderr of a log apart")
	}
	out := vkapi.ContainerLogOpts{Timestamps: opts.Timestamps, Follow: opts.Follow, Previous: opts.Previous}
	for to, from := range map[*int]*int64{&out.Tail: opts.TailLines, &out.LimitBytes: opts.LimitBytes, &out.SinceSeconds: opts.SinceSeconds} {
		if from != nil {
			*to = int(*from)
		}
	}
	if opts.SinceTime != nil {
		out.SinceTime = opts.SinceTime.Time
	}
	if opts.TailLines != nil && *opts.TailLines == 0 && !opts.Follow {
		return io.NopCloser(&emptyReader{}), nil // a provider takes 0 for all lines
	}
	reader, err := b.logs.GetContainerLogs(ctx, c.Namespace, c.Pod.Name, c.Name, out)
	if err == nil && reader == nil { // of a provider that has the method and no logs
		reader = io.NopCloser(&emptyReader{})
	}
	return reader, asStatus(err)
}

type emptyReader struct{}

func (*emptyReader) Read([]byte) (int, error) { return 0, io.EOF }

// Exec implements nodeapi.Executor.
func (b *serverBackend) Exec(ctx context.Context, c nodeapi.Container, command []string, s nodeapi.Streams) error {
	if b.exec == nil {
		return unsupported("RunInContainer")
	}
	return asStatus(b.exec.RunInContainer(ctx, c.Namespace, c.Pod.Name, c.Name, command, newAttachIO(ctx, s)))
}

// Attach implements nodeapi.Attacher.
func (b *serverBackend) Attach(ctx context.Context, c nodeapi.Container, s nodeapi.Streams) error {
	if b.attach == nil {
		return unsupported("AttachToContainer")
	}
	return asStatus(b.attach.AttachToContainer(ctx, c.Namespace, c.Pod.Name, c.Name, newAttachIO(ctx, s)))
}

// PortForward implements nodeapi.PortForwarder.
func (b *serverBackend) PortForward(ctx context.Context, p nodeapi.Pod, port uint16, stream io.ReadWriteCloser) error {
	if b.forward == nil {
		return unsupported("PortForward")
	}
	return b.forward.PortForward(ctx, p.Namespace, p.Name, int32(port), stream)
}

// StatsSummary implements nodeapi.StatsSource.
func (b *serverBackend) StatsSummary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	if b.stats == nil {
		return nil, unsupported("GetStatsSummary")
	}
	summary, err := b.stats.GetStatsSummary(ctx)
	if err == nil && summary == nil {
		summary = &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: b.nodeName}}
	}
	return summary, asStatus(err)
}

// metricsBackend is the backend of a provider that has GetMetricsResource. The
// metrics of another are computed from its summary.
type metricsBackend struct {
	*serverBackend
	metrics metricsProvider
}

// MetricsResource implements nodeapi.MetricsSource.
func (b *metricsBackend) MetricsResource(ctx context.Context) ([]*dto.MetricFamily, error) {
	return b.metrics.GetMetricsResource(ctx)
}

// attachIO is nodeapi.Streams as a provider knows them.
type attachIO struct {
	nodeapi.Streams
	resize chan vkapi.TermSize
}

func newAttachIO(ctx context.Context, s nodeapi.Streams) vkapi.AttachIO {
	io := &attachIO{Streams: s}
	if s.TTY {
		io.resize = make(chan vkapi.TermSize)
		go func() {
			defer close(io.resize)
			for size := range s.Resize {
				select {
				case io.resize <- vkapi.TermSize{Width: size.Width, Height: size.Height}:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	return io
}

func (a *attachIO) Stdin() io.Reader              { return a.Streams.Stdin }
func (a *attachIO) Stdout() io.WriteCloser        { return closer(a.Streams.Stdout) }
func (a *attachIO) Stderr() io.WriteCloser        { return closer(a.Streams.Stderr) }
func (a *attachIO) TTY() bool                     { return a.Streams.TTY }
func (a *attachIO) Resize() <-chan vkapi.TermSize { return a.resize }

// closer gives a writer the method Close that providers expect. The Server ends
// the stream when the provider has returned.
func closer(w io.Writer) io.WriteCloser {
	if w == nil {
		return nil
	}
	return nopCloser{w}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
