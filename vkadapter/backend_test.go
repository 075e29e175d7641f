// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kubewright/kubewright/nodeapi"
)

var webContainer = nodeapi.Container{Pod: nodeapi.Pod{Namespace: "default", Name: "web", UID: "1"}, Name: "c"}

// served has all methods by which a provider serves kubectl. Those of a provider that has
// nothing to say return nil.
type served struct {
	node.PodLifecycleHandler
	silent  bool
	err     error
	opts    vkapi.ContainerLogOpts
	summary *statsv1alpha1.Summary
}

func (s *served) GetContainerLogs(_ context.Context, namespace, pod, container string, opts vkapi.ContainerLogOpts) (io.ReadCloser, error) {
	s.opts = opts
	if s.silent || s.err != nil {
		return nil, s.err
	}
	return io.NopCloser(strings.NewReader(namespace + pod + container)), nil
}

func (s *served) RunInContainer(_ context.Context, _, _, _ string, cmd []string, attach vkapi.AttachIO) error {
	_, err := fmt.Fprintf(attach.Stdout(), "%v %v", cmd, attach.Stderr() == nil)
	return errors.Join(err, attach.Stdout().Close())
}

func (s *served) AttachToContainer(_ context.Context, _, _, _ string, attach vkapi.AttachIO) error {
	_, err := io.Copy(attach.Stdout(), attach.Stdin())
	return err
}

func (s *served) PortForward(_ context.Context, _, pod string, port int32, stream io.ReadWriteCloser) error {
	_, err := fmt.Fprint(stream, pod, port)
	return err
}

func (s *served) GetStatsSummary(context.Context) (*statsv1alpha1.Summary, error) {
	return s.summary, s.err
}

func (s *served) GetMetricsResource(context.Context) ([]*dto.MetricFamily, error) {
	return []*dto.MetricFamily{{}}, nil
}

func backendOf(t *testing.T, provider node.PodLifecycleHandler) any {
	t.Helper()
	a, err := New(provider, Config{NodeName: "vk"})
	if err != nil {
		t.Fatal(err)
	}
	return a.Backend()
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }

func TestTheBackendHasEveryCapabilityOfTheProvider(t *testing.T) {
	provider := &served{}
	backend, ctx, all := backendOf(t, provider), t.Context(), corev1.LogStreamAll
	opts := nodeapi.LogOptions{Stream: &all, Follow: true, TailLines: new(int64(3)), LimitBytes: new(int64(4)), SinceSeconds: new(int64(5)), Timestamps: true, Previous: true}
	reader, err := backend.(nodeapi.LogSource).Logs(ctx, webContainer, opts)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(reader); string(got) != "defaultwebc" || err != nil {
		t.Errorf("logs %q, %v", got, err)
	}
	if want := (vkapi.ContainerLogOpts{Follow: true, Tail: 3, LimitBytes: 4, SinceSeconds: 5, Timestamps: true, Previous: true}); provider.opts != want {
		t.Errorf("options %+v, want %+v", provider.opts, want)
	}
	since := metav1.NewTime(time.Unix(7, 0))
	for _, c := range []struct {
		opts nodeapi.LogOptions
		want vkapi.ContainerLogOpts
	}{
		{nodeapi.LogOptions{Stream: &all, SinceTime: &since}, vkapi.ContainerLogOpts{SinceTime: since.Time}},
		{nodeapi.LogOptions{Stream: &all, TailLines: new(int64(0)), Follow: true}, vkapi.ContainerLogOpts{Follow: true}},
	} {
		if _, err := backend.(nodeapi.LogSource).Logs(ctx, webContainer, c.opts); err != nil || provider.opts != c.want {
			t.Errorf("options %+v, %v, want %+v", provider.opts, err, c.want)
		}
	}
	reader, err = backend.(nodeapi.LogSource).Logs(ctx, webContainer, nodeapi.LogOptions{Stream: &all, TailLines: new(int64(0))})
	if got, _ := io.ReadAll(reader); len(got) != 0 || err != nil {
		t.Errorf("no line of the log: %q, %v", got, err)
	}
	var out bytes.Buffer
	if err := backend.(nodeapi.Executor).Exec(ctx, webContainer, []string{"a", "b"}, nodeapi.Streams{Stdout: &out}); err != nil || out.String() != "[a b] true" {
		t.Errorf("exec %q, %v", out.String(), err)
	}
	out.Reset()
	if err := backend.(nodeapi.Attacher).Attach(ctx, webContainer, nodeapi.Streams{Stdin: strings.NewReader("x"), Stdout: &out}); err != nil || out.String() != "x" {
		t.Errorf("attach %q, %v", out.String(), err)
	}
	var stream buffer
	if err := backend.(nodeapi.PortForwarder).PortForward(ctx, webContainer.Pod, 80, &stream); err != nil || stream.String() != "web80" {
		t.Errorf("port-forward %q, %v", stream.String(), err)
	}
	provider.summary = &statsv1alpha1.Summary{}
	if summary, err := backend.(nodeapi.StatsSource).StatsSummary(ctx); err != nil || summary != provider.summary {
		t.Errorf("summary %v, %v", summary, err)
	}
	if families, err := backend.(nodeapi.MetricsSource).MetricsResource(ctx); err != nil || len(families) != 1 {
		t.Errorf("metrics %v, %v", families, err)
	}
}

// A provider may have a method and nothing behind it.
func TestNilAnswersOfAProvider(t *testing.T) {
	backend, all := backendOf(t, &served{silent: true}), corev1.LogStreamAll
	reader, err := backend.(nodeapi.LogSource).Logs(t.Context(), webContainer, nodeapi.LogOptions{Stream: &all})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(reader); len(got) != 0 || err != nil {
		t.Errorf("logs %q, %v", got, err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	if summary, err := backend.(nodeapi.StatsSource).StatsSummary(t.Context()); err != nil || summary == nil || summary.Node.NodeName != "vk" {
		t.Errorf("summary %v, %v", summary, err)
	}
}

func TestErrorsOfAProviderGetTheirStatus(t *testing.T) {
	all := corev1.LogStreamAll
	for want, err := range map[int32]error{404: errdefs.NotFound("no such pod"), 400: errdefs.InvalidInput("what?")} {
		_, got := backendOf(t, &served{err: err}).(nodeapi.LogSource).Logs(t.Context(), webContainer, nodeapi.LogOptions{Stream: &all})
		var status apierrors.APIStatus
		if !errors.As(got, &status) || status.Status().Code != want || !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%v became %v, want status %d", err, got, want)
		}
	}
	if summary, err := backendOf(t, &served{err: errdefs.NotFound("no stats")}).(nodeapi.StatsSource).StatsSummary(t.Context()); summary != nil || !apierrors.IsNotFound(err) {
		t.Errorf("summary %v, %v", summary, err)
	}
	stdout := corev1.LogStreamStdout
	if _, err := backendOf(t, &served{}).(nodeapi.LogSource).Logs(t.Context(), webContainer, nodeapi.LogOptions{Stream: &stdout}); !apierrors.IsBadRequest(err) {
		t.Errorf("the log of stdout alone: %v", err)
	}
	bare := backendOf(t, stub{})
	if _, ok := bare.(nodeapi.MetricsSource); ok {
		t.Error("a provider without GetMetricsResource has metrics of its own")
	}
	var stream buffer
	_, logs := bare.(nodeapi.LogSource).Logs(t.Context(), webContainer, nodeapi.LogOptions{Stream: &all})
	for method, err := range map[string]error{
		"GetContainerLogs":  logs,
		"RunInContainer":    bare.(nodeapi.Executor).Exec(t.Context(), webContainer, []string{"a"}, nodeapi.Streams{}),
		"AttachToContainer": bare.(nodeapi.Attacher).Attach(t.Context(), webContainer, nodeapi.Streams{}),
		"PortForward":       bare.(nodeapi.PortForwarder).PortForward(t.Context(), webContainer.Pod, 80, &stream),
	} {
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != 501 || !strings.Contains(err.Error(), method) {
			t.Errorf("%s is not there: %v", method, err)
		}
	}
}

func TestTerminalSizesReachTheProvider(t *testing.T) {
	sizes := make(chan nodeapi.TerminalSize, 1)
	sizes <- nodeapi.TerminalSize{Width: 80, Height: 24}
	close(sizes)
	io := newAttachIO(t.Context(), nodeapi.Streams{TTY: true, Resize: sizes})
	if got := <-io.Resize(); got != (vkapi.TermSize{Width: 80, Height: 24}) {
		t.Errorf("%v", got)
	}
	if got, more := <-io.Resize(); more {
		t.Errorf("%v after the end", got)
	}
	if newAttachIO(t.Context(), nodeapi.Streams{Resize: sizes}).Resize() != nil {
		t.Error("a session without a terminal has sizes")
	}
	if !io.TTY() || io.Stdin() != nil || io.Stdout() != nil || io.Stderr() != nil {
		t.Error("a stream that the client did not ask for is not nil")
	}
}
