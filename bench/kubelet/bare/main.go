// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Bare is a client of the CRI that starts pods and stops them, and does nothing else. What a
// kubelet on the same runtime needs more than it is the kubelet's own.
//
// Each line on its standard input begins a step: the first one starts all pods, the second one
// stops them. It prints a line for each pod that has come so far.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	endpoint := flag.String("endpoint", "", "`socket` of the container runtime")
	image := flag.String("image", "", "`name` of the image of the containers")
	parent := flag.String("cgroup-parent", "", "`cgroup` of the pods")
	logs := flag.String("logs", "", "`folder` of the logs")
	pods := flag.Int("pods", 1, "`number` of pods")
	atOnce := flag.Int("at-once", 0, "`number` of pods that are started at the same time; 0: all")
	flag.Parse()
	conn, err := grpc.NewClient(*endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	c := &client{runtimeapi.NewRuntimeServiceClient(conn), *image, *parent, *logs}
	if *atOnce == 0 {
		*atOnce = *pods
	}
	all := make([]pod, *pods)
	ctx, input := context.Background(), bufio.NewScanner(os.Stdin)
	for _, step := range []struct {
		atOnce int
		of     func(context.Context, int, *pod) error
	}{{*atOnce, c.start}, {*pods, c.stop}} { // kubelets put no limit on stops
		if !input.Scan() {
			log.Fatal("the standard input has ended")
		}
		places := make(chan struct{}, step.atOnce)
		var wg sync.WaitGroup
		for i := range all {
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				if err := step.of(ctx, i, &all[i]); err != nil {
					log.Fatalf("pod %d: %v", i, err)
				}
				fmt.Println(i)
			})
		}
		wg.Wait()
	}
	input.Scan() // the caller measures this process before it ends
}

// A pod is a sandbox with one container.
type pod struct{ sandbox, container string }

type client struct {
	runtimeapi.RuntimeServiceClient
	image, parent, logs string
}

// start makes the sandbox of a pod and starts its container. The configurations are those that
// a kubelet makes of the same pod, without the mounts.
func (c *client) start(ctx context.Context, i int, p *pod) error {
	name := "pause-" + strconv.Itoa(i)
	logs := filepath.Join(c.logs, name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	seccomp := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	namespaces := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	box := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: name}, Hostname: name, LogDirectory: logs,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    c.parent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: namespaces, Seccomp: seccomp},
		},
	}
	made, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		return err
	}
	p.sandbox = made.PodSandboxId
	created, err := c.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: p.sandbox, SandboxConfig: box, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "pause"}, Image: &runtimeapi.ImageSpec{Image: c.image}, LogPath: "pause.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       &runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: namespaces},
		},
	}})
	if err != nil {
		return err
	}
	p.container = created.ContainerId
	_, err = c.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container})
	return err
}

// grace is the grace period of the pods.
const grace = 5 * time.Second

// stopTries is how often the end of a pod is tried.
const stopTries = 20

// stop stops the container of a pod, and its sandbox. A shim whose pod is ending may close the
// connection on containerd, and then a kubelet repeats the call, too.
func (c *client) stop(ctx context.Context, _ int, p *pod) (err error) {
	for range stopTries {
		if _, err = c.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: p.container, Timeout: int64(grace / time.Second)}); err == nil {
			if _, err = c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err == nil {
				return nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}
