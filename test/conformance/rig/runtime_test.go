// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxes is a runtime with sandboxes that can be stopped with the given codes.
type sandboxes struct {
	runtimeapi.RuntimeServiceClient
	codes   []codes.Code
	stopped []string
}

func (s *sandboxes) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest, ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	list := &runtimeapi.ListPodSandboxResponse{}
	for i := range s.codes {
		list.Items = append(list.Items, &runtimeapi.PodSandbox{Id: string(rune('a' + i))})
	}
	return list, nil
}

func (s *sandboxes) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest, _ ...grpc.CallOption) (*runtimeapi.StopPodSandboxResponse, error) {
	s.stopped = append(s.stopped, r.PodSandboxId)
	return nil, status.Error(s.codes[r.PodSandboxId[0]-'a'], "injected")
}

// TestASandboxThatIsGoneNeedsNoStop: a removal that the kubelet had requested ended
// between the list and the stop.
func TestASandboxThatIsGoneNeedsNoStop(t *testing.T) {
	for _, test := range []struct {
		codes []codes.Code
		fails bool
	}{
		{codes: []codes.Code{codes.OK, codes.NotFound, codes.OK}},
		{codes: []codes.Code{codes.Unknown, codes.NotFound, codes.OK}, fails: true},
	} {
		s := &sandboxes{codes: test.codes}
		if err := stopSandboxes(t.Context(), s); (err != nil) != test.fails {
			t.Errorf("%v: %v", test.codes, err)
		}
		if !slices.Equal(s.stopped, []string{"a", "b", "c"}) {
			t.Errorf("%v: stopped %v", test.codes, s.stopped)
		}
	}
}

// stops is a runtime with a container in each sandbox, which can be stopped with the given errors.
type stops struct {
	runtimeapi.RuntimeServiceClient
	errs map[string]error // by sandbox
}

func (s stops) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest, _ ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	list := &runtimeapi.ListContainersResponse{}
	for box := range s.errs {
		if r.Filter.LabelSelector["io.kubernetes.pod.uid"] == "uid" {
			list.Containers = append(list.Containers, &runtimeapi.Container{Id: box, PodSandboxId: box})
		}
	}
	return list, nil
}

func (s stops) StopContainer(_ context.Context, r *runtimeapi.StopContainerRequest, _ ...grpc.CallOption) (*runtimeapi.StopContainerResponse, error) {
	return &runtimeapi.StopContainerResponse{}, s.errs[r.ContainerId]
}

// TestOnlyShimsThatHangAreKilled has processes with the arguments of shims.
func TestOnlyShimsThatHangAreKilled(t *testing.T) {
	r := &Runtime{Dir: t.TempDir()}
	client := stops{errs: map[string]error{
		"stopped": nil,
		"hangs":   status.Error(codes.Unknown, `failed to kill container "c": context deadline exceeded: unknown`),
		"late":    status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
		"refused": status.Error(codes.Unknown, "container is in starting state"),
		"gone":    status.Error(codes.NotFound, "no such container"),
	}}
	shims := map[string]*exec.Cmd{}
	for box := range client.errs {
		cmd := exec.Command("sh")
		cmd.Args = []string{"/usr/bin/containerd-shim-runc-v2", "-c", "echo; read line", "-namespace", "k8s.io", "-id", box, "-address", r.socket()}
		stdin, err1 := cmd.StdinPipe()
		stdout, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stdin.Close() })
		if _, err := stdout.Read(make([]byte, 1)); err != nil { // it has its arguments
			t.Fatal(err)
		}
		shims[box] = cmd
	}
	if n := len(r.Shims()); n != len(shims) {
		t.Errorf("there are %d shims, want %d", n, len(shims))
	}
	if killed, err := r.KillHangingShims(t.Context(), client, "other"); err != nil || len(killed) > 0 {
		t.Errorf("of another pod: %v, %v", killed, err)
	}
	killed, err := r.KillHangingShims(t.Context(), client, "uid")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(killed)
	want := []int{shims["hangs"].Process.Pid, shims["late"].Process.Pid}
	slices.Sort(want)
	if !slices.Equal(killed, want) {
		t.Fatalf("killed %v, want %v", killed, want)
	}
	for _, box := range []string{"hangs", "late"} {
		if err := shims[box].Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("the shim of %s: %v", box, err)
		}
	}
}
