// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// withServices lets podenv read Services and make tokens, as a kubelet does.
func withServices(w *world) {
	core := w.api.Client(apitest.User{}).CoreV1()
	w.env = &podenv.Config{Services: core, ServiceAccounts: core}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	w.api.Put(&corev1.Service{ObjectMeta: meta("kubernetes"), Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 443}}}})
	w.api.Put(&corev1.ServiceAccount{ObjectMeta: meta("default")})
	w.api.Put(&corev1.ConfigMap{ObjectMeta: meta("settings"), Data: map[string]string{"k": "text"}})
	w.api.Put(&corev1.Secret{ObjectMeta: meta("password"), Data: map[string][]byte{"k": []byte("hidden")}})
}

// configured is a container with a variable of a ConfigMap or a Secret.
func configured(c corev1.Container, secret bool) corev1.Container {
	v := corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{}}
	if secret {
		v.ValueFrom.SecretKeyRef = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "password"}, Key: "k"}
	} else {
		v.ValueFrom.ConfigMapKeyRef = &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Key: "k"}
	}
	c.Env = append(c.Env, v)
	return c
}

// withToken is a pod with a volume of a token and a Secret.
func withToken(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "password"}}},
	}}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	return pod
}

// named gives a pod a name and a UID of its own.
func named(name string, pod *corev1.Pod) *corev1.Pod {
	pod.Name, pod.UID = name, types.UID("uid-"+name)
	return pod
}

// A kubelet restarts containers while the API server is away.
func TestContainersRestartWhileTheAPIServerIsAway(t *testing.T) {
	for name, fault := range map[string]apitest.Fault{"refused": {Err: errors.New("connection refused")}, "silent": {Hang: true}} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, withServices, func(w *world) {
				names := []string{"plain", "config", "secret", "unlinked"}
				crashing := func(name string) corev1.Container { return command(name, "exit 1 1m") }
				unlinked := podOf(corev1.RestartPolicyAlways, crashing("unlinked"))
				unlinked.Spec.EnableServiceLinks = new(false)
				w.start(named("plain", podOf(corev1.RestartPolicyAlways, crashing("plain"))))
				w.start(named("config", podOf(corev1.RestartPolicyAlways, configured(crashing("config"), false))))
				w.start(named("secret", podOf(corev1.RestartPolicyAlways, configured(crashing("secret"), true))))
				w.start(named("unlinked", unlinked))
				time.Sleep(30 * time.Second)
				w.api.Inject(fault)
				time.Sleep(time.Hour)
				for _, name := range names {
					// Runs of a minute with back-offs of up to five minutes.
					if got := w.started(name); len(got) < 12 {
						t.Errorf("%s was started %d times: %v", name, len(got), got)
					}
				}
			})
		})
	}
}

// page is the answer of a proxy that has no API server behind it.
func page(apitest.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"text/html"}}, Body: io.NopCloser(strings.NewReader("<html>default backend - 404</html>"))}, nil
}

// empty is the answer of a proxy that makes up an object.
func empty(apitest.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

// A proxy in place of the API server takes nothing from pods: neither the files of a volume nor
// what containers restart with, which is also there when nothing answers any longer.
func TestPodsKeepWhatTheyHaveBehindAProxy(t *testing.T) {
	for name, answer := range map[string]func(apitest.Request) (*http.Response, error){"a page": page, "an empty object": empty} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, withServices, func(w *world) {
				pod := named("config", podOf(corev1.RestartPolicyAlways, configured(command("config", "exit 1 1m"), false)))
				for _, optional := range []bool{false, true} {
					pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("optional-", optional), VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Optional: &optional},
					}})
				}
				ref := w.start(pod)
				time.Sleep(30 * time.Second)
				remove := w.api.Inject(apitest.Fault{Answer: answer})
				time.Sleep(time.Hour)
				began := func() int { return len(w.started("config")) }
				n := began()
				if n < 12 { // runs of a minute with back-offs of up to five minutes
					t.Errorf("it was started %d times in an hour", n)
				}
				for _, v := range pod.Spec.Volumes {
					if data, err := os.ReadFile(filepath.Join(w.root, "pods", string(ref.UID), "volumes", v.Name, "k")); err != nil || string(data) != "text" {
						t.Errorf("volume %s: %q, %v", v.Name, data, err)
					}
				}
				remove()
				w.api.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
				time.Sleep(time.Hour)
				if more := began() - n; more < 10 {
					t.Errorf("it was started %d times in the next hour", more)
				}
			})
		})
	}
}

// The only place among the starts is for a pod that needs nothing of the API server.
func TestAStartThatWaitsForTheAPIServerTakesNoPlace(t *testing.T) {
	inWorldWith(t, func(w *world) {
		withServices(w)
		w.env = nil
		w.change = func(cfg *podruntime.Config) { cfg.MaxStarts = 1 }
	}, func(w *world) {
		waiting := podOf(corev1.RestartPolicyNever, configured(command("waiting", "exit 0"), true))
		waiting.Spec.InitContainers = []corev1.Container{command("first", "exit 0 5s")}
		w.start(named("waiting", waiting))
		time.Sleep(time.Second)
		w.api.Inject(apitest.Fault{Hang: true})
		time.Sleep(5 * time.Second)
		w.start(named("ready", podOf(corev1.RestartPolicyNever, command("ready", "exit 0"))))
		w.begun("ready", 6*time.Second)
		time.Sleep(time.Minute)
		w.begun("waiting", 15*time.Second)
	})
}

// restartMachine kills the process and everything that runs, and empties what is in memory.
func (w *world) restartMachine() {
	w.kill()
	w.memory.mu.Lock()
	for _, e := range w.memory.containers {
		if e.State == podruntime.ContainerRunning {
			e.State, e.ExitCode, e.FinishedAt = podruntime.ContainerExited, 255, time.Now()
		}
	}
	w.memory.mu.Unlock()
	for _, b := range w.boxes {
		b.Ready = false
	}
	if err := mounts.UnmountBelow(w.root); err != nil {
		w.Fatal(err)
	}
	w.boot()
}

// xor is a Sealer for tests.
type xor struct{}

func (xor) Seal(data []byte) ([]byte, error) {
	sealed := slices.Clone(data)
	for i := range sealed {
		sealed[i] ^= 0xff
	}
	return sealed, nil
}

func (xor) Open(sealed []byte) ([]byte, error) { return xor{}.Seal(sealed) }

// The machine is restarted while the API server is away. Pods without Secrets run again, those
// with them if the program seals Secrets; else they say what they wait for, until it is back.
func TestPodsRunAfterARestartWithoutTheAPIServer(t *testing.T) {
	for name, sealer := range map[string]podenv.Sealer{"sealed": xor{}, "not sealed": nil} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) {
				withServices(w)
				w.boxed = true
				w.change = func(cfg *podruntime.Config) { cfg.Sealer = sealer }
			}, func(w *world) {
				config := w.start(named("config", podOf(corev1.RestartPolicyAlways, configured(command("config", "forever"), false))))
				secret := w.start(named("secret", podOf(corev1.RestartPolicyAlways, configured(command("secret", "forever"), true))))
				withVolume := named("token", withToken(podOf(corev1.RestartPolicyAlways, command("token", "forever"))))
				w.api.Put(withVolume.DeepCopy()) // as the token is bound to it
				token := w.start(withVolume)
				time.Sleep(time.Minute)
				inMemory := filepath.Join(w.root, "pods", string(token.UID), "memory", "v", "token")
				_, err := os.Stat(inMemory)
				mounted := err == nil
				remove := w.api.Inject(apitest.Fault{Err: errors.New("connection refused")})
				w.restartMachine()
				time.Sleep(time.Minute)
				if st := w.container(config, "config"); st.State.Running == nil || st.RestartCount != 1 {
					t.Errorf("without a Secret it has %+v", st)
				}
				for ref, name := range map[podsync.Ref]string{secret: "secret", token: "token"} {
					switch st := w.container(ref, name); {
					case sealer != nil || name == "token" && !mounted:
						if st.State.Running == nil {
							t.Errorf("%s has %+v", name, st)
						}
					case st.State.Waiting == nil || st.State.Waiting.Reason != "CreateContainerConfigError" || !strings.Contains(st.State.Waiting.Message, "password"):
						t.Errorf("%s has %+v, want it to wait for the Secret", name, st.State)
					}
				}
				remove()
				time.Sleep(2 * time.Minute)
				for ref, name := range map[podsync.Ref]string{config: "config", secret: "secret", token: "token"} {
					if st := w.container(ref, name); st.State.Running == nil || st.RestartCount != 1 {
						t.Errorf("with the API server %s has %+v", name, st)
					}
				}
				if _, err := os.Stat(inMemory); mounted && err != nil {
					t.Error(err)
				}
				// Nothing of a Secret is on the disk.
				data, err := os.ReadFile(filepath.Join(w.root, "pods", string(secret.UID), "inputs.json"))
				if err != nil || strings.Contains(string(data), "aGlkZGVu") {
					t.Errorf("%s, %v", data, err)
				}
				w.stop(token, time.Second)
				time.Sleep(time.Minute)
				if err := w.p.Release(w.Context(), token); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A volume with Secrets may be read before the first container starts, which mounts its memory.
func TestSecretsStayInMemoryWhileAPodWaitsAfterARestart(t *testing.T) {
	inWorldWith(t, func(w *world) { withServices(w); w.boxed = true }, func(w *world) {
		pod := named("token", withToken(podOf(corev1.RestartPolicyAlways, command("c", "forever"))))
		w.api.Put(pod.DeepCopy())
		ref := w.start(pod)
		time.Sleep(time.Hour)
		dir := filepath.Join(w.root, "pods", string(ref.UID))
		if _, err := os.Stat(filepath.Join(dir, "memory", "v", "token")); err != nil {
			return // this process may not mount
		}
		w.change = func(*podruntime.Config) {
			w.link.setBefore(func(op string) error {
				if op == "SetUpPod" {
					return errors.New("not yet")
				}
				return nil
			})
		}
		w.restartMachine()
		time.Sleep(5 * time.Minute)
		if _, err := os.Stat(filepath.Join(dir, "volumes", "v")); !errors.Is(err, fs.ErrNotExist) {
			w.Errorf("Secrets are on the disk: %v", err)
		}
		w.link.setBefore(nil)
		time.Sleep(2 * time.Minute)
		if st := w.container(ref, "c"); st.State.Running == nil {
			w.Errorf("%+v", st)
		}
	})
}

// A lagging is a Runtime whose Start takes long, and that notes whether it was cut off.
type lagging struct {
	*link
	takes time.Duration
}

func (s lagging) Start(ctx context.Context, spec podruntime.ContainerSpec) error {
	select {
	case <-time.After(s.takes):
		return s.link.Start(ctx, spec)
	case <-ctx.Done():
		s.note("cut off")
		return ctx.Err()
	}
}

// A containerd that is cut off while it starts a container makes it one that has failed.
func TestADeletionLetsAStartEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, ended time.Duration
		journal      []string
	}{
		"a slow start": {10 * time.Second, 11 * time.Second, []string{"start c/0", "stop c/0"}},
		"a hang":       {time.Hour, podruntime.CallTimeout + 3*time.Second, []string{"cut off"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorldWith(t, func(w *world) {
				w.change = func(cfg *podruntime.Config) { cfg.Runtime = lagging{w.link, tc.takes} }
			}, func(w *world) {
				ref := w.start(podOf(corev1.RestartPolicyNever, command("c", "forever")))
				time.Sleep(time.Second)
				w.stop(ref, time.Second)
				time.Sleep(time.Second)
				if w.state(ref).Stopped {
					t.Error("the pod has stopped while its container is being started")
				}
				time.Sleep(tc.ended)
				if s := w.state(ref); !s.Stopped || s.Status.ContainerStatuses[0].State.Terminated != nil && s.Status.ContainerStatuses[0].State.Terminated.ExitCode != 0 {
					t.Errorf("the pod has %+v", s)
				}
				w.expect(tc.journal...)
			})
		})
	}
}
