// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package criserver is a container runtime in memory that serves the CRI on a socket,
// for tests. The first word of a container's command is its behaviour: forever runs
// until it is stopped, stubborn until it is killed, exit N exits with code N, and missing
// can't be started.
package criserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Server is the runtime. Its fields may be set before the first call, and Lock must
// be held to use them later.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
	sync.Mutex

	// Socket is the path of the socket.
	Socket string
	// Images are the images by name. A pull adds those in Registry.
	Images, Registry map[string]*runtimeapi.Image
	// Pulls are the pulls that were asked for.
	Pulls []*runtimeapi.PullImageRequest
	// Password is the password that a pull needs; empty: none.
	Password string
	// Sandboxes and Containers are what exists.
	Sandboxes  map[string]*Sandbox
	Containers map[string]*Container
	// Fail returns the error of a call by the name of its method, or nil.
	Fail func(method string) error
	// Hangs says that PodSandboxStatus and ContainerStatus of a pod do not answer.
	Hangs string
	// Calls counts calls by method.
	Calls map[string]int
	// Events has the server report events. EndEvents has it end their stream at once, as
	// CRI-O does if they are switched off.
	Events, EndEvents bool
	// Info are the details in Status.
	Info map[string]string

	server   *grpc.Server
	ids      int
	watchers map[chan *runtimeapi.ContainerEventResponse]bool
}

// A Sandbox is a sandbox with the request that made it.
type Sandbox struct {
	Config  *runtimeapi.PodSandboxConfig
	Handler string
	Status  *runtimeapi.PodSandboxStatus
	// Lost says that the sandbox has no process, so that no container starts in it.
	Lost bool
}

// A Container is a container with the request that made it.
type Container struct {
	Box    string
	Config *runtimeapi.ContainerConfig
	Status *runtimeapi.ContainerStatus
	Stops  []int64 // the timeouts that it was stopped with
	ended  chan struct{}
}

// Start starts a Server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{
		Socket: filepath.Join(dir, "s"), Calls: map[string]int{}, Sandboxes: map[string]*Sandbox{}, Containers: map[string]*Container{},
		Images: map[string]*runtimeapi.Image{"none:1": {Id: "sha256:none", RepoTags: []string{"none:1"}}}, Registry: map[string]*runtimeapi.Image{},
		watchers: map[chan *runtimeapi.ContainerEventResponse]bool{},
	}
	s.Serve(t)
	t.Cleanup(s.Stop)
	return s
}

// Serve listens again after Stop.
func (s *Server) Serve(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	s.server = grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method := filepath.Base(info.FullMethod)
		s.Lock()
		s.Calls[method]++
		fail := s.Fail
		s.Unlock()
		if fail != nil {
			if err := fail(method); err != nil {
				return nil, err
			}
		}
		return handler(ctx, req)
	}))
	runtimeapi.RegisterRuntimeServiceServer(s.server, s)
	runtimeapi.RegisterImageServiceServer(s.server, s)
	server := s.server
	go func() { _ = server.Serve(listener) }()
}

// Stop ends the server as if the runtime were killed: containers run on.
func (s *Server) Stop() { s.server.Stop() }

// Endpoint is the endpoint of the CRI.
func (s *Server) Endpoint() string { return "unix://" + s.Socket }

func (s *Server) id(prefix string) string {
	s.ids++
	return prefix + strconv.Itoa(s.ids)
}

func notFound(id string) error { return status.Error(codes.NotFound, id) }

// Version implements the CRI.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "memory", RuntimeVersion: "1.0"}, nil
}

// Status implements the CRI.
func (s *Server) Status(_ context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	info := map[string]string{}
	if r.Verbose {
		info = s.Info
	}
	return &runtimeapi.StatusResponse{Info: info, Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// RunPodSandbox implements the CRI.
func (s *Server) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	s.Lock()
	defer s.Unlock()
	for _, b := range s.Sandboxes {
		if m, n := b.Config.Metadata, r.Config.Metadata; m.Uid == n.Uid && m.Attempt == n.Attempt {
			return nil, status.Error(codes.Unknown, "the name of the sandbox is reserved")
		}
	}
	id := s.id("box")
	s.Sandboxes[id] = &Sandbox{Config: r.Config, Handler: r.RuntimeHandler, Status: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: r.Config.Metadata, Labels: r.Config.Labels, CreatedAt: time.Now().UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: fmt.Sprintf("10.0.%d.%d", s.ids/256, s.ids%256)},
		Linux:   &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: r.Config.Linux.SecurityContext.NamespaceOptions}},
	}}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox implements the CRI.
func (s *Server) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.Lock()
	defer s.Unlock()
	if b := s.Sandboxes[r.PodSandboxId]; b != nil {
		b.Status.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range s.Containers {
			if c.Box == r.PodSandboxId && c.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				s.end(c, 137)
			}
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the CRI.
func (s *Server) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.Lock()
	defer s.Unlock()
	for id, c := range s.Containers {
		if c.Box == r.PodSandboxId {
			delete(s.Containers, id)
		}
	}
	delete(s.Sandboxes, r.PodSandboxId)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus implements the CRI.
func (s *Server) PodSandboxStatus(ctx context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.Lock()
	defer s.Unlock()
	b := s.Sandboxes[r.PodSandboxId]
	if b == nil {
		return nil, notFound(r.PodSandboxId)
	}
	if err := s.answer(ctx, b.Config.Metadata.Uid); err != nil {
		return nil, err
	}
	pid := 4711
	if b.Lost {
		pid = 0
	}
	out := &runtimeapi.PodSandboxStatusResponse{Status: b.Status}
	if r.Verbose {
		out.Info = map[string]string{"info": fmt.Sprintf(`{"pid":%d,"processStatus":"running"}`, pid)}
	}
	return out, nil
}

// answer waits for the end of ctx if the pod hangs. The lock must be held.
func (s *Server) answer(ctx context.Context, pod string) error {
	if s.Hangs != pod {
		return nil
	}
	s.Unlock()
	defer s.Lock()
	<-ctx.Done()
	return ctx.Err()
}

func selected(filter, labels map[string]string) bool {
	for k, v := range filter {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ListPodSandbox implements the CRI.
func (s *Server) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	s.Lock()
	defer s.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for id, b := range s.Sandboxes {
		if selected(r.GetFilter().GetLabelSelector(), b.Config.Labels) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: id, Metadata: b.Config.Metadata, State: b.Status.State, CreatedAt: b.Status.CreatedAt, Labels: b.Config.Labels, Annotations: b.Config.Annotations, RuntimeHandler: b.Handler})
		}
	}
	return out, nil
}

// CreateContainer implements the CRI.
func (s *Server) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	s.Lock()
	defer s.Unlock()
	b := s.Sandboxes[r.PodSandboxId]
	if b == nil || b.Status.State != runtimeapi.PodSandboxState_SANDBOX_READY {
		return nil, notFound(r.PodSandboxId)
	}
	for _, c := range s.Containers {
		if c.Box == r.PodSandboxId && c.Config.Metadata.Name == r.Config.Metadata.Name && c.Config.Metadata.Attempt == r.Config.Metadata.Attempt {
			return nil, status.Error(codes.Unknown, "the name of the container is reserved")
		}
	}
	id := s.id("container")
	s.Containers[id] = &Container{Box: r.PodSandboxId, Config: r.Config, ended: make(chan struct{}), Status: &runtimeapi.ContainerStatus{
		Id: id, Metadata: r.Config.Metadata, Labels: r.Config.Labels, Image: r.Config.Image, ImageRef: r.Config.Image.Image, CreatedAt: time.Now().UnixNano(),
	}}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer implements the CRI.
func (s *Server) StartContainer(_ context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	s.Lock()
	defer s.Unlock()
	c := s.Containers[r.ContainerId]
	if c == nil {
		return nil, notFound(r.ContainerId)
	}
	if c.Status.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Error(codes.Unknown, "the container was started already")
	}
	words := strings.Fields(strings.Join(c.Config.Command, " "))
	failure := ""
	switch {
	case s.Sandboxes[c.Box].Lost:
		failure = "namespace path: lstat /proc/0/ns/ipc: no such file or directory"
	case len(words) == 1 && words[0] == "missing":
		failure = "exec: \"missing\": executable file not found in $PATH"
	}
	if failure != "" {
		s.end(c, 128)
		c.Status.Reason = "StartError"
		return nil, status.Error(codes.Unknown, failure)
	}
	c.Status.State, c.Status.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	s.report(c)
	if len(words) == 2 && words[0] == "exit" {
		code, _ := strconv.Atoi(words[1])
		s.end(c, int32(code))
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// end ends a container. The lock must be held.
func (s *Server) end(c *Container, code int32) {
	now := c.Status
	// Statuses that were handed out do not change.
	c.Status = &runtimeapi.ContainerStatus{
		Id: now.Id, Metadata: now.Metadata, Labels: now.Labels, Image: now.Image, ImageRef: now.ImageRef, CreatedAt: now.CreatedAt, StartedAt: now.StartedAt,
		State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: code, FinishedAt: time.Now().UnixNano(),
	}
	close(c.ended)
	s.report(c)
}

// report sends an event. The lock must be held.
func (s *Server) report(c *Container) {
	for w := range s.watchers {
		select {
		case w <- &runtimeapi.ContainerEventResponse{ContainerId: c.Status.Id, PodSandboxStatus: s.Sandboxes[c.Box].Status}:
		default:
		}
	}
}

// GetContainerEvents implements the CRI.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	s.Lock()
	if s.EndEvents {
		s.Unlock()
		return nil
	}
	if !s.Events {
		s.Unlock()
		return status.Error(codes.Unimplemented, "no events")
	}
	c := make(chan *runtimeapi.ContainerEventResponse, 1000)
	s.watchers[c] = true
	s.Unlock()
	defer func() {
		s.Lock()
		defer s.Unlock()
		delete(s.watchers, c)
	}()
	for {
		select {
		case e := <-c:
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// StopContainer implements the CRI.
func (s *Server) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.Lock()
	c := s.Containers[r.ContainerId]
	if c == nil {
		s.Unlock()
		return nil, notFound(r.ContainerId)
	}
	c.Stops = append(c.Stops, r.Timeout)
	if c.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING && (len(c.Config.Command) == 0 || c.Config.Command[0] != "stubborn") {
		s.end(c, 0)
	}
	over := c.Status.State == runtimeapi.ContainerState_CONTAINER_EXITED
	s.Unlock()
	if over {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(r.Timeout) * time.Second):
		s.Lock()
		defer s.Unlock()
		if c.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			s.end(c, 137)
		}
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements the CRI. It kills a container that runs, as real runtimes do.
func (s *Server) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	s.Lock()
	defer s.Unlock()
	delete(s.Containers, r.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers implements the CRI.
func (s *Server) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	s.Lock()
	defer s.Unlock()
	f := r.GetFilter()
	out := &runtimeapi.ListContainersResponse{}
	for id, c := range s.Containers {
		if selected(f.GetLabelSelector(), c.Config.Labels) && (f.GetPodSandboxId() == "" || f.PodSandboxId == c.Box) && (f.GetState() == nil || f.State.State == c.Status.State) {
			out.Containers = append(out.Containers, &runtimeapi.Container{
				Id: id, PodSandboxId: c.Box, Metadata: c.Config.Metadata, State: c.Status.State, Labels: c.Config.Labels, Image: c.Config.Image, ImageRef: c.Config.Image.Image,
			})
		}
	}
	return out, nil
}

// ContainerStatus implements the CRI.
func (s *Server) ContainerStatus(ctx context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.Lock()
	defer s.Unlock()
	c := s.Containers[r.ContainerId]
	if c == nil {
		return nil, notFound(r.ContainerId)
	}
	if err := s.answer(ctx, s.Sandboxes[c.Box].Config.Metadata.Uid); err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.Status}, nil
}

// UpdateContainerResources implements the CRI.
func (s *Server) UpdateContainerResources(_ context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.Lock()
	defer s.Unlock()
	c := s.Containers[r.ContainerId]
	if c == nil {
		return nil, notFound(r.ContainerId)
	}
	c.Config.Linux.Resources = r.Linux
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ExecSync implements the CRI: the command exit N prints output and exits with N, print N prints
// N bytes, and sleep runs until its timeout or, without one, until the call ends.
func (s *Server) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if r.Cmd[0] == "sleep" {
		var timeout <-chan time.Time
		if r.Timeout > 0 {
			timeout = time.After(time.Duration(r.Timeout) * time.Second)
		}
		select {
		case <-timeout:
			return nil, status.Error(codes.DeadlineExceeded, "timed out")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	code, _ := strconv.Atoi(slices.Concat(r.Cmd, []string{"0"})[1])
	if r.Cmd[0] == "print" {
		return &runtimeapi.ExecSyncResponse{Stdout: make([]byte, code)}, nil
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: int32(code), Stdout: []byte("output\n")}, nil
}

// ReopenContainerLog implements the CRI.
func (s *Server) ReopenContainerLog(_ context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	s.Lock()
	defer s.Unlock()
	c := s.Containers[r.ContainerId]
	if c == nil {
		return nil, notFound(r.ContainerId)
	}
	log := filepath.Join(s.Sandboxes[c.Box].Config.LogDirectory, c.Config.LogPath)
	return &runtimeapi.ReopenContainerLogResponse{}, os.WriteFile(log, nil, 0o600)
}

// ListContainerStats implements the CRI.
func (s *Server) ListContainerStats(_ context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	s.Lock()
	defer s.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	for id, c := range s.Containers {
		if selected(r.GetFilter().GetLabelSelector(), c.Config.Labels) {
			out.Stats = append(out.Stats, &runtimeapi.ContainerStats{
				Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.Config.Metadata, Labels: c.Config.Labels},
				Cpu:        &runtimeapi.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: 1e9}},
				Memory:     &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: 1 << 20}},
				// Each run has a larger layer than the one before.
				WritableLayer: &runtimeapi.FilesystemUsage{UsedBytes: &runtimeapi.UInt64Value{Value: uint64(1+c.Config.Metadata.Attempt) << 20}},
			})
		}
	}
	return out, nil
}

// ImageStatus implements the CRI.
func (s *Server) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	s.Lock()
	defer s.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: s.Images[r.Image.Image]}, nil
}

// ListImages implements the CRI.
func (s *Server) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	s.Lock()
	defer s.Unlock()
	out := &runtimeapi.ListImagesResponse{}
	for _, i := range s.Images {
		out.Images = append(out.Images, i)
	}
	return out, nil
}

// PullImage implements the CRI.
func (s *Server) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	s.Lock()
	defer s.Unlock()
	s.Pulls = append(s.Pulls, r)
	image := s.Registry[r.Image.Image]
	if image == nil {
		return nil, notFound(r.Image.Image)
	}
	if s.Password != "" && r.Auth.GetPassword() != s.Password {
		return nil, status.Error(codes.Unauthenticated, "wrong password")
	}
	s.Images[r.Image.Image] = image
	return &runtimeapi.PullImageResponse{ImageRef: image.Id}, nil
}

// RemoveImage implements the CRI.
func (s *Server) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.Lock()
	defer s.Unlock()
	for name, i := range s.Images {
		if i.Id == r.Image.Image {
			delete(s.Images, name)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}
