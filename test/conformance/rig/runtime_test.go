// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
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
