// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/textlogger"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// After a restart one line says which pods were found, and which are missing.
func TestARestartLogsWhatItFound(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs()
		const says = "Found the pods of an earlier process"
		w.run()
		kept, lost := w.bind(newPod("kept")), w.bind(newPod("lost"))
		done := w.bind(newPod("done", restart(corev1.RestartPolicyNever)))
		pass(time.Minute)
		w.backend.Finish(done.UID, 0)
		pass(time.Minute)
		w.stop()
		if strings.Contains(log.String(), says) {
			t.Errorf("there was no earlier process:\n%s", log.String())
		}
		log = w.logs()
		w.backend.Lose(lost.UID)
		w.backend.Lose(done.UID) // it had ended
		w.backend.Plant(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "orphan", UID: "1-2-3"}, Spec: newPod("orphan").Spec})
		w.bind(newPod("new"))
		w.run()
		pass(time.Minute)
		w.stop()
		if n := strings.Count(log.String(), says); n != 1 {
			t.Fatalf("%d lines, want one:\n%s", n, log.String())
		}
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, says) && !strings.Contains(line,
				`found=1 missing=1 orphans=1 foundPods=["default/kept"] missingPods=["default/lost"] orphanPods=["default/orphan"]`) {
				t.Errorf("%s", line)
			}
		}
		if !w.backend.Running(kept.UID) {
			t.Error("the pod that was found runs no longer")
		}
	})
}

// The line of a node with many pods has how many were found, and the names of fifty.
func TestTheLineOfARestartIsBounded(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs()
		for i := range 60 {
			pod := w.bind(newPod(fmt.Sprintf("pod-%02d", i)))
			w.backend.Plant(pod)
		}
		w.run()
		pass(time.Minute)
		w.stop()
		_, line, _ := strings.Cut(log.String(), "Found the pods of an earlier process")
		line, _, _ = strings.Cut(line, "\n")
		if !strings.Contains(line, "found=60") || strings.Count(line, "default/pod-") != 50 || !strings.Contains(line, `"default/pod-49","…"]`) {
			t.Errorf("%s", line)
		}
	})
}

// At V2 an operator reads that a pod runs, that it ends and that it has stopped, and nothing between.
func TestTheStagesThatAnOperatorReads(t *testing.T) {
	bubble(t, podsynctest.Options{}, func(w *world) {
		log := w.logs(textlogger.Verbosity(2))
		w.run()
		w.bind(newPod("a"))
		pass(time.Minute)
		w.kubectlDelete("a", 10)
		pass(time.Minute)
		w.stop()
		var stages []string
		for line := range strings.Lines(log.String()) {
			if _, after, ok := strings.Cut(line, " to=\""); ok && strings.Contains(line, "Pod changed stage") {
				stage, _, _ := strings.Cut(after, "\"")
				stages = append(stages, stage)
			}
		}
		if want := []string{"Running", "Terminating", "Stopped"}; !slices.Equal(stages, want) {
			t.Errorf("stages %q, want %q:\n%s", stages, want, log.String())
		}
	})
}

// The credentials of another node are the likely cause of a refusal, and both names are in it.
func TestCredentialsOfAnotherNodeAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string
		server := apitest.New(apitest.Options{})
		server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		c, err := podsync.New(podsync.Config{
			Client: server.Client(apitest.NodeUser("other")).CoreV1(), NodeName: node,
			Provider: simple(podsynctest.NewBackend(podsynctest.Options{}).Connect()),
			ErrorHandler: func(_ context.Context, err error, _ string) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, err.Error())
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = c.Run(ctx) })
		pass(time.Minute)
		const want = `the client is "system:node:other", but the node served is "n1": the node name or the credentials are wrong: `
		if err := c.CheckProvider(ctx, node); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CheckProvider = %v", err)
		}
		cancel()
		run.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(said) == 0 || !strings.HasPrefix(said[0], "podsync: watch pods: "+want) {
			t.Errorf("reported: %q", said)
		}
	})
}
