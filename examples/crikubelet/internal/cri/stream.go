// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/podsync/podruntime"
)

// Streams are the streams of an exec or attach request; those that are nil were not
// asked for.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	// Resize returns the next size of the terminal, or nil after the last one.
	Resize func() *remotecommand.TerminalSize
}

// sizes is a remotecommand.TerminalSizeQueue.
type sizes func() *remotecommand.TerminalSize

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *remotecommand.TerminalSize { return s() }

// ExecStreams runs a command in a running container with streams, and returns its end.
func (r *Runtime) ExecStreams(ctx context.Context, id podruntime.ContainerID, command []string, s Streams) error {
	container, err := r.running(ctx, id)
	if err != nil {
		return err
	}
	answer, err := r.client.Exec(ctx, &runtimeapi.ExecRequest{
		ContainerId: container, Cmd: command, Tty: s.TTY, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil,
	})
	if err != nil {
		return err
	}
	return connect(ctx, answer.Url, s)
}

// Attach connects streams to the main process of a running container.
func (r *Runtime) Attach(ctx context.Context, id podruntime.ContainerID, s Streams) error {
	container, err := r.running(ctx, id)
	if err != nil {
		return err
	}
	answer, err := r.client.Attach(ctx, &runtimeapi.AttachRequest{
		ContainerId: container, Tty: s.TTY, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil,
	})
	if err != nil {
		return err
	}
	return connect(ctx, answer.Url, s)
}

// connect connects streams to those that the runtime serves at address.
func connect(ctx context.Context, address string, s Streams) error {
	at, err := url.Parse(address)
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: at.Host}, http.MethodPost, at)
	if err != nil {
		return err
	}
	opts := remotecommand.StreamOptions{Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY}
	if s.TTY && s.Resize != nil {
		opts.TerminalSizeQueue = sizes(s.Resize)
	}
	return executor.StreamWithContext(ctx, opts)
}

// PortForward connects a stream to a port of a pod, through the server of the
// runtime, which is in the network of the pod.
func (r *Runtime) PortForward(ctx context.Context, pod types.UID, port uint16, stream io.ReadWriteCloser) error {
	boxes, err := r.sandboxes(ctx, pod)
	if err != nil {
		return err
	}
	if len(boxes) == 0 || boxes[0].State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return errors.New("the pod does not run")
	}
	answer, err := r.client.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: boxes[0].Id, Port: []int32{int32(port)}})
	if err != nil {
		return err
	}
	at, err := url.Parse(answer.Url)
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: at.Host})
	if err != nil {
		return err
	}
	conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, at).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	failure, err := conn.CreateStream(headers)
	if err != nil {
		return err
	}
	_ = failure.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := conn.CreateStream(headers)
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(data, stream)
		_ = data.Close() // the end of the client's bytes
	}()
	_, err = io.Copy(stream, data)
	_ = stream.Close()
	if message, _ := io.ReadAll(failure); len(message) > 0 {
		return fmt.Errorf("%s", message)
	}
	return err
}
