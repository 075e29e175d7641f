// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/kubewright/kubewright/podsync"
)

// A stub is an API server that does as little as it can, so that a benchmark
// measures the client: requests take the latency, and as little of the processor as
// possible. It speaks protobuf.
type stub struct {
	latency time.Duration

	mu   sync.Mutex
	pods map[string]*corev1.Pod
	rv   int
	feed *io.PipeWriter
	sent *restwatch.Encoder
	open chan struct{} // closes when the watch is there
}

func newStub(latency time.Duration) *stub {
	return &stub{latency: latency, pods: map[string]*corev1.Pod{}, rv: 1, open: make(chan struct{})}
}

func (s *stub) client() *kubernetes.Clientset {
	return kubernetes.NewForConfigOrDie(&rest.Config{
		Host: "http://stub.invalid", Transport: s, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
	})
}

// add binds pods and shows them to the watch.
func (s *stub) add(pods []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		s.rv++
		pod.ResourceVersion = strconv.Itoa(s.rv)
		s.pods[pod.Name] = pod
		s.send(watch.Added, pod)
	}
}

// echo shows all pods to the watch as they are stored.
func (s *stub) echo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range s.pods {
		s.send(watch.Modified, pod)
	}
}

func (s *stub) send(typ watch.EventType, pod *corev1.Pod) {
	if err := s.sent.Encode(&watch.Event{Type: typ, Object: pod}); err != nil {
		panic(err) // the benchmark may be waiting for this event
	}
}

func (s *stub) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("sendInitialEvents") != "":
		return answer(422, "application/json", strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)), nil
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		return s.watch(r.Context()), nil
	case r.Method == http.MethodGet:
		return encoded(&corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	case r.Method == http.MethodPatch:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		time.Sleep(s.latency)
		return s.patch(parts[5], body)
	}
	return nil, fmt.Errorf("the stub can't %s %s", r.Method, r.URL)
}

func (s *stub) watch(ctx context.Context) *http.Response {
	reader, writer := io.Pipe()
	context.AfterFunc(ctx, func() { writer.Close() })
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed = writer
	s.sent = restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(writer), scheme.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion)),
		scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion))
	close(s.open)
	return answer(200, runtime.ContentTypeProtobuf+";stream=watch", reader)
}

// patch merges as much as these patches need.
func (s *stub) patch(name string, body []byte) (*http.Response, error) {
	var p struct {
		Metadata metav1.ObjectMeta
		Status   corev1.PodStatus
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, err
	}
	s.mu.Lock()
	pod := s.pods[name].DeepCopy()
	s.rv++
	pod.ResourceVersion = strconv.Itoa(s.rv)
	s.pods[name] = pod
	s.mu.Unlock()
	next, old := &p.Status, &pod.Status
	for _, c := range next.Conditions {
		if at := condition(pod, c.Type); at != nil {
			mergeCondition(at, c)
		} else {
			old.Conditions = append(old.Conditions, c)
		}
	}
	next.Conditions = old.Conditions
	if len(next.PodIPs) > 0 {
		next.PodIPs = next.PodIPs[1:] // the first one says: replace
	} else {
		next.PodIPs, next.PodIP = old.PodIPs, old.PodIP
	}
	if next.ContainerStatuses == nil {
		next.ContainerStatuses = old.ContainerStatuses
	}
	if next.Phase == "" {
		next.Phase = old.Phase
	}
	if next.StartTime == nil {
		next.StartTime = old.StartTime
	}
	next.ObservedGeneration = max(next.ObservedGeneration, old.ObservedGeneration)
	next.QOSClass = old.QOSClass
	pod.Status = *next
	return encoded(pod)
}

// mergeCondition changes at as a strategic merge does: what c leaves out stays.
func mergeCondition(at *corev1.PodCondition, c corev1.PodCondition) {
	if c.Status != "" {
		at.Status, at.LastTransitionTime = c.Status, c.LastTransitionTime
	}
	if c.Reason != "" || c.Message != "" {
		at.Reason, at.Message = c.Reason, c.Message
	}
	at.ObservedGeneration = max(at.ObservedGeneration, c.ObservedGeneration)
}

func answer(code int, contentType string, body io.Reader) *http.Response {
	closer, ok := body.(io.ReadCloser)
	if !ok {
		closer = io.NopCloser(body)
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {contentType}}, Body: closer, ContentLength: -1, ProtoMajor: 2}
}

func encoded(obj runtime.Object) (*http.Response, error) {
	var buf bytes.Buffer
	err := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion).Encode(obj, &buf)
	return answer(200, runtime.ContentTypeProtobuf, &buf), err
}

// instant is a provider whose pods run when Start returns, and whose calls do
// nothing else.
type instantProvider struct {
	mu      sync.Mutex
	held    map[types.UID]podsync.Ref
	started chan<- podsync.Ref
	hang    func(podsync.Ref) bool
}

func stateOf(ref podsync.Ref, message string) podsync.State {
	started := metav1.Time{Time: time.Unix(1700000000, 0)}
	running := func(name string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: name, Ready: true, Image: "registry.example/app:1", ContainerID: "stub://" + name,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		}
	}
	return podsync.State{Ref: ref, Status: corev1.PodStatus{
		Message: message, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		ContainerStatuses: []corev1.ContainerStatus{running("main"), running("proxy")},
	}}
}

func (p *instantProvider) Start(ctx context.Context, pod *corev1.Pod) (podsync.State, error) {
	ref := podsync.RefOf(pod)
	if p.hang != nil && p.hang(ref) {
		<-ctx.Done()
		return podsync.State{}, ctx.Err()
	}
	p.mu.Lock()
	p.held[ref.UID] = ref
	p.mu.Unlock()
	if p.started != nil {
		p.started <- ref
	}
	return stateOf(ref, ""), nil
}

func (p *instantProvider) Stop(_ context.Context, ref podsync.Ref, _ podsync.StopOptions) (podsync.State, error) {
	return podsync.State{Ref: ref, Stopped: true}, nil
}

func (p *instantProvider) List(context.Context) ([]podsync.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]podsync.State, 0, len(p.held))
	for _, ref := range p.held {
		states = append(states, stateOf(ref, ""))
	}
	return states, nil
}

// benchPods are pods of the size that is common: two containers with
// resources, probes, volumes and a service account, about 4 KB of JSON.
func benchPods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pod := newPod(fmt.Sprint("pod-", i))
		pod.UID, pod.Generation = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)), 1
		pod.Labels = map[string]string{"app": "bench", "pod-template-hash": "6d4cf56db6"}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "bench-6d4cf56db6", UID: "1"}}
		container := func(name string) corev1.Container {
			c := corev1.Container{Name: name, Image: "registry.example/app:1", ImagePullPolicy: corev1.PullIfNotPresent}
			for j := range 8 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", j), Value: "a value of some length"})
			}
			c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 10, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready"}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}}
			return c
		}
		pod.Spec.Containers = []corev1.Container{container("main"), container("proxy")}
		pod.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.ServiceAccountName = "default"
		pods[i] = pod
	}
	return pods
}
