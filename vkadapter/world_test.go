// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/testmain"
	"github.com/kubewright/kubewright/vkadapter"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const nodeName = "vk"

var errAway = errors.New("500 Internal Server Error")

// A cloud is a back end. It outlives the process, and knows a job by the name of its pod.
type cloud struct {
	mu      sync.Mutex
	jobs    map[string]*job
	starts  map[types.UID]int // how many jobs each pod had
	away    bool              // every call fails
	serials int
	touched []string // what DeletePod was called for that is no job of this node
}

type job struct {
	id      string
	uid     types.UID
	created time.Time
	pod     *corev1.Pod // as CreatePod got it
	exited  *int32
	ended   time.Time // when it has ended after it was asked to; zero: it was not asked
	over    bool      // it has ended, and is kept
}

func newCloud() *cloud { return &cloud{jobs: map[string]*job{}, starts: map[types.UID]int{}} }

func key(namespace, name string) string { return namespace + "/" + name }

func (c *cloud) setAway(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
}

// exit ends the containers of a job.
func (c *cloud) exit(name string, code int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j := c.jobs[key("default", name)]; j != nil {
		j.exited = &code
	}
}

// names returns the names of the jobs.
func (c *cloud) names() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if !j.over {
			names = append(names, j.pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *cloud) started(uid types.UID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts[uid]
}

// Habits are what providers do. The zero value is a provider as virtual-kubelet asks for it.
type habits struct {
	silent         bool          // has no NotifyPods
	noUIDs         bool          // returns pods without UIDs
	noNames        bool          // returns pods without metadata: SaladCloud
	jobNames       bool          // GetPods names pods after their jobs; DeletePod takes these names, GetPod does not
	notFound       error         // for a pod that isn't there; nil: nil, nil
	lies           bool          // returns nothing and no error while the back end is away: SaladCloud
	codes          bool          // only GetPodStatus has errors, with the back end's status code: SaladCloud
	byUID          bool          // has GetPodByUID, and GetPod is not implemented: interLink
	noStatus       bool          // only GetPodStatus and reports have the status
	noContainers   bool          // reports phases without containers
	ownContainers  bool          // names containers after the job: SaladCloud
	staleRunning   bool          // never reports the end of a container
	lag            time.Duration // until GetPod and GetPods have a new job
	stopTime       time.Duration // until a job has ended after DeletePod
	forgets        bool          // DeletePod forgets the job at once, the last report has the end
	loopInGetPods  bool          // reports from a loop that GetPods starts: interLink
	loopInCreate   bool          // CreatePod submits the job in a goroutine, with its context: interLink
	progressInPoll bool          // a job runs only when GetPodStatus is called
	listsCluster   bool          // finds its jobs through annotations of pods in the API: interLink
	polls          bool          // reports the pods of the lister, as SaladCloud
	panics         bool          // GetPodStatus panics for the pod "bad"
	hangs          bool          // GetPodStatus of the pod "bad" returns when its context is done
	unlisted       bool          // GetPods leaves out all pods, or some of them
	nilErrors      bool          // GetPod and GetPodStatus return nothing while the back end is away
	inLabels       bool          // has the job in a label of the pod, and DeletePod needs it
	foreign        bool          // GetPods returns objects of another cluster and of another node too
	hostObjects    bool          // returns objects of the back end, with its node and generation
	keepsEnded     bool          // a deleted job stays, failed, until another one takes its name
	reportsInCall  bool          // reports in CreatePod and DeletePod, under its lock
	createTimesOut bool          // the first CreatePod of a pod fails after it has submitted the job
	blips          bool          // each seventh GetPod of a pod fails
	ownJobs        bool          // knows only jobs that this process has submitted; GetPods leaves out those whose look-up fails: NERSC
	createErr      func(pod *corev1.Pod) error
}

// provider is a provider with habits.
type provider struct {
	*cloud
	habits
	pods corev1listers.PodLister

	mu     sync.Mutex
	notify func(*corev1.Pod)
	known  map[types.UID]*corev1.Pod // of listsCluster
	loops  int
	gets   map[string]int     // calls of GetPod by key
	getErr error              // of GetPod
	extra  []*corev1.Pod      // in GetPods
	last   *corev1.Pod        // that UpdatePod got
	late   map[types.UID]bool // createTimesOut: its CreatePod has failed
	own    map[string]bool    // ownJobs: the keys of its jobs; guarded by the cloud's mutex
	seen   []string           // calls
}

func (p *provider) did(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, call)
}

// count returns how often a method was called.
func (p *provider) count(call string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.seen {
		if c == call {
			n++
		}
	}
	return n
}

// The variants of the provider have the methods that New looks for.
type (
	notifying      struct{ *provider }
	uidProvider    struct{ *provider }
	uidNotifying   struct{ notifying }
	statusByMethod interface{ node.PodLifecycleHandler }
)

func (p notifying) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	p.did("NotifyPods")
	p.mu.Lock()
	p.notify = notify
	p.mu.Unlock()
	if p.polls {
		go p.poll(ctx)
	} else if !p.loopInGetPods {
		go p.loop(ctx)
	}
}

func (p uidProvider) GetPodByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	return p.getByUID(ctx, namespace, name, uid)
}

func (p uidProvider) GetPodStatusByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.PodStatus, error) {
	return p.statusByUID(ctx, namespace, name, uid)
}

func (p uidNotifying) GetPodByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	return p.getByUID(ctx, namespace, name, uid)
}

func (p uidNotifying) GetPodStatusByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.PodStatus, error) {
	return p.statusByUID(ctx, namespace, name, uid)
}

// handler returns the provider with the methods of its habits.
func (p *provider) handler() statusByMethod {
	switch {
	case p.silent && p.byUID:
		return uidProvider{p}
	case p.silent:
		return p
	case p.byUID:
		return uidNotifying{notifying{p}}
	}
	return notifying{p}
}

// elsewhere is a pod of another node of the cluster.
const elsewhere = "elsewhere"

// jobPrefix begins the names of the pods of GetPods with jobNames.
const jobPrefix = "job-of-"

// report tells a pod that the provider goes on using.
func (p *provider) report(pod *corev1.Pod) {
	p.mu.Lock()
	notify := p.notify
	p.mu.Unlock()
	if p.silent {
		return
	}
	notify(pod) // nil if NotifyPods was not called: a panic
	pod.Status = corev1.PodStatus{Phase: "the provider goes on using it"}
}

// loop reports all jobs each second until ctx is done.
func (p *provider) loop(ctx context.Context) {
	p.mu.Lock()
	p.loops++
	p.mu.Unlock()
	for {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return
		}
		for _, pod := range p.all() {
			p.report(pod)
		}
	}
}

// poll reports the pods of the lister.
func (p *provider) poll(ctx context.Context) {
	for {
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return
		}
		pods, err := p.pods.List(labels.Everything())
		if err != nil {
			continue
		}
		for _, pod := range pods {
			if status, err := p.status(pod.Namespace, pod.Name); err == nil && status != nil && pod.DeletionTimestamp == nil {
				pod.Status = *status
				p.report(pod)
			}
		}
	}
}

// all returns the pods of all jobs, whole.
func (p *provider) all() (pods []*corev1.Pod) {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	if p.away {
		return nil
	}
	for _, j := range p.jobs {
		if p.alive(j) {
			pod := j.pod.DeepCopy()
			pod.Status = p.statusOf(j)
			pods = append(pods, pod)
		}
	}
	return pods
}

// alive forgets a job that has ended after DeletePod, and reports whether the job is there.
func (p *provider) alive(j *job) bool {
	if j.ended.IsZero() || time.Now().Before(j.ended) {
		return true
	}
	if j.over = p.keepsEnded; j.over {
		return true
	}
	delete(p.jobs, key(j.pod.Namespace, j.pod.Name))
	return false
}

func (p *provider) statusOf(j *job) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "192.0.2.9", PodIPs: []corev1.PodIP{{IP: "192.0.2.9"}}}
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(j.created)}}
	if p.progressInPoll && j.exited == nil && time.Since(j.created) == 0 {
		status.Phase, state = corev1.PodPending, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Deploying"}}
	}
	if j.exited != nil {
		status.Phase = corev1.PodSucceeded
		if *j.exited != 0 {
			status.Phase = corev1.PodFailed
		}
		if !p.staleRunning {
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: *j.exited, FinishedAt: metav1.Now()}}
		}
	}
	if j.over {
		status.Phase, state = corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}
	}
	if p.noContainers {
		return status
	}
	for _, c := range j.pod.Spec.Containers {
		name := c.Name
		if p.ownContainers {
			name = j.id
		}
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: name, Image: c.Image, Ready: state.Running != nil, State: state})
	}
	return status
}

func (p *provider) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	p.did("CreatePod")
	if p.createErr != nil {
		if err := p.createErr(pod); err != nil {
			return err
		}
	}
	submit := func() error {
		p.cloud.mu.Lock()
		defer p.cloud.mu.Unlock()
		if p.away {
			if p.lies {
				return nil
			}
			return errAway
		}
		k := key(pod.Namespace, pod.Name)
		if p.ownJobs && p.own[k] {
			return nil
		}
		if old, ok := p.jobs[k]; ok && !old.over && !p.ownJobs {
			return fmt.Errorf("name_conflict: %s", k)
		}
		p.serials++
		id := fmt.Sprintf("job-%d", p.serials)
		into := &pod.Annotations
		if p.inLabels {
			into = &pod.Labels
		}
		if *into == nil {
			*into = map[string]string{}
		}
		(*into)["JobID"] = id
		p.jobs[k] = &job{id: id, uid: pod.UID, created: time.Now(), pod: pod.DeepCopy()}
		p.starts[pod.UID]++
		p.own[k] = true
		if p.reportsInCall {
			reported := pod.DeepCopy()
			reported.Status = p.statusOf(p.jobs[k])
			p.report(reported)
		}
		if p.createTimesOut && !p.late[pod.UID] {
			p.late[pod.UID] = true
			return errors.New("timed out")
		}
		return nil
	}
	accept := func() {
		if p.listsCluster {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.known[pod.UID] = pod
		}
	}
	if !p.loopInCreate {
		err := submit()
		if err == nil {
			accept()
		}
		return err
	}
	accept()
	go func() {
		for {
			select {
			case <-time.After(2 * time.Second):
			case <-ctx.Done():
				return
			}
			if submit() == nil {
				reported := pod.DeepCopy()
				reported.Status.Phase = corev1.PodPending
				p.report(reported)
				return
			}
		}
	}()
	return nil
}

func (p *provider) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	p.did("UpdatePod")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = pod
	return nil
}

func (p *provider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	p.did("DeletePod")
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	if p.ownJobs && !p.own[key(pod.Namespace, pod.Name)] {
		return nil
	}
	if p.away {
		if p.lies {
			return nil
		}
		return errAway
	}
	name := pod.Name
	if p.jobNames {
		name = strings.TrimPrefix(name, jobPrefix)
	}
	j, ok := p.jobs[key(pod.Namespace, name)]
	if p.foreign && (!ok || j.uid != pod.UID) {
		p.touched = append(p.touched, key(pod.Namespace, name))
	}
	if p.inLabels && ok && pod.Labels["JobID"] != j.id {
		return nil // it cancels the job of the label, which is none
	}
	if p.listsCluster {
		p.mu.Lock()
		_, ok2 := p.known[pod.UID]
		delete(p.known, pod.UID)
		p.mu.Unlock()
		ok = ok && ok2
	}
	switch {
	case !ok && p.ownJobs:
		return errors.New("cancel failed: 404 Not Found")
	case !ok:
		return errdefs.NotFound("no such job")
	case p.ownJobs:
		delete(p.own, key(pod.Namespace, pod.Name))
		delete(p.jobs, key(pod.Namespace, pod.Name))
	case p.forgets:
		delete(p.jobs, key(pod.Namespace, pod.Name))
		last := j.pod.DeepCopy()
		last.Status = p.statusOf(j)
		for i := range last.Status.ContainerStatuses {
			last.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 42, FinishedAt: metav1.Now()}}
		}
		go p.report(last)
	case j.ended.IsZero():
		j.ended = time.Now().Add(p.stopTime)
		if p.reportsInCall {
			last := j.pod.DeepCopy()
			j.exited = new(int32)
			last.Status = p.statusOf(j)
			p.report(last)
		}
	}
	return nil
}

// returned is a pod as GetPod and GetPods return it.
func (p *provider) returned(j *job) *corev1.Pod {
	pod := j.pod.DeepCopy()
	pod.Status = p.statusOf(j)
	if p.noStatus {
		pod.Status = corev1.PodStatus{}
	}
	if p.hostObjects {
		pod.UID, pod.Spec.NodeName, pod.Generation = "", "host-7", 1
		return pod
	}
	if p.noUIDs {
		pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Status: pod.Status}
	}
	if p.noNames {
		pod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: j.id}}}, Status: pod.Status}
	}
	return pod
}

// job returns a job that the provider shows.
func (p *provider) job(namespace, name string) (*job, error) {
	if p.ownJobs && !p.own[key(namespace, name)] {
		return nil, fmt.Errorf("pod %s not found", key(namespace, name))
	}
	if p.away {
		if p.lies || p.nilErrors {
			return nil, nil
		}
		return nil, errAway
	}
	if j, ok := p.jobs[key(namespace, name)]; ok && p.alive(j) && time.Since(j.created) >= p.lag {
		return j, nil
	}
	return nil, p.notFound
}

func (p *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	p.did("GetPod")
	if p.byUID {
		return &corev1.Pod{}, errors.New("NOT IMPLEMENTED")
	}
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	if p.getErr != nil {
		return nil, p.getErr
	}
	if p.blips {
		if p.gets == nil {
			p.gets = map[string]int{}
		}
		k := key(namespace, name)
		if p.gets[k]++; p.gets[k]%7 == 0 {
			return nil, errAway
		}
	}
	if p.foreign && name == elsewhere {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, nil
	}
	j, err := p.job(namespace, name)
	if j == nil || p.away {
		return nil, err
	}
	return p.returned(j), nil
}

func (p *provider) status(namespace, name string) (*corev1.PodStatus, error) {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	j, err := p.job(namespace, name)
	switch {
	case p.codes && p.away:
		return nil, &codeError{http.StatusInternalServerError}
	case p.codes && j == nil:
		return nil, &codeError{http.StatusNotFound}
	case p.away && !p.nilErrors:
		return nil, errAway // the one method that tells the truth
	case j == nil:
		return nil, err
	}
	status := p.statusOf(j)
	return &status, nil
}

// codeError is an error like SaladCloud's models.APIError.
type codeError struct{ StatusCode int }

func (e *codeError) Error() string { return fmt.Sprintf("a %d error was returned", e.StatusCode) }

func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	p.did("GetPodStatus")
	switch {
	case p.byUID:
		return &corev1.PodStatus{}, errors.New("NOT IMPLEMENTED")
	case p.panics && name == "bad":
		panic("unimplemented")
	case p.hangs && name == "bad":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.status(namespace, name)
}

func (p *provider) getByUID(_ context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	p.did("GetPodByUID")
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	if p.listsCluster {
		p.mu.Lock()
		defer p.mu.Unlock()
		if pod, ok := p.known[uid]; ok {
			return pod, nil
		}
		return nil, errdefs.NotFound("not known")
	}
	j, err := p.job(namespace, name)
	if j == nil || j.uid != uid {
		return nil, cmpErr(err, errdefs.NotFound("no such job"))
	}
	return p.returned(j), nil
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func (p *provider) statusByUID(ctx context.Context, namespace, name string, uid types.UID) (*corev1.PodStatus, error) {
	pod, err := p.getByUID(ctx, namespace, name, uid)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (p *provider) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	p.did("GetPods")
	if p.loopInGetPods {
		go p.loop(ctx)
	}
	if p.listsCluster {
		selector := labels.Everything()
		if p.inLabels {
			selector, _ = labels.Parse("JobID")
		}
		pods, err := p.pods.List(selector)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		var found []*corev1.Pod
		for _, pod := range pods {
			if pod.Annotations["JobID"] != "" || p.inLabels {
				p.known[pod.UID] = pod
				found = append(found, pod.DeepCopy())
			}
		}
		p.mu.Unlock()
		for _, pod := range found {
			p.report(pod)
		}
	}
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	if p.away {
		if p.lies || p.ownJobs {
			return nil, nil
		}
		return nil, errAway
	}
	pods := slices.Clone(p.extra)
	if p.foreign {
		pods = []*corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "theirs"}, Spec: corev1.PodSpec{NodeName: "their-node"}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-of-theirs"}, Spec: corev1.PodSpec{NodeName: "their-node"}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: elsewhere}},
		}
	}
	for k, j := range p.jobs {
		if p.ownJobs && !p.own[k] {
			continue
		}
		if p.listsCluster {
			p.mu.Lock()
			_, ok := p.known[j.uid]
			p.mu.Unlock()
			if !ok {
				continue
			}
		}
		if p.alive(j) && time.Since(j.created) >= p.lag && !p.unlisted {
			pod := p.returned(j)
			if p.jobNames {
				pod.Name = jobPrefix + pod.Name
			}
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// A world is an API server, a cloud, and at most one process between them.
type world struct {
	*testing.T
	s        *apitest.Server
	cloud    *cloud
	habits   habits
	nodes    node.NodeProvider
	template *corev1.Node
	change   func(*vkadapter.NodeConfig)
	lockDir  string
	wrap     func(*provider) statusByMethod // nil: handler
	logger   klog.Logger                    // the zero value: none

	p    *provider
	node *vkadapter.Node
	end  func() error // nil: no process runs
	uids int
}

func bubble(t *testing.T, h habits, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, s: apitest.New(apitest.Options{}), cloud: newCloud(), habits: h, lockDir: t.TempDir()}
		defer func() { w.stop() }()
		f(w)
	})
}

// start starts a process.
func (w *world) start() {
	w.Helper()
	w.p = &provider{cloud: w.cloud, habits: w.habits, known: map[types.UID]*corev1.Pod{}, late: map[types.UID]bool{}, own: map[string]bool{}}
	cfg := vkadapter.NodeConfig{
		Client: w.s.Client(apitest.User{}), InternalIP: "192.0.2.1", Listener: newPipes(), LockDir: w.lockDir, Template: w.template,
	}
	if w.change != nil {
		w.change(&cfg)
	}
	n, err := vkadapter.NewNode(nodeName, func(pc nodeutil.ProviderConfig) (node.PodLifecycleHandler, node.NodeProvider, error) {
		w.p.pods = pc.Pods
		if w.wrap != nil {
			return w.wrap(w.p), w.nodes, nil
		}
		return w.p.handler(), w.nodes, nil
	}, cfg)
	if err != nil {
		w.Fatal(err)
	}
	w.node = n
	ctx, cancel := context.WithCancel(klog.NewContext(w.Context(), w.logger))
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	w.end = func() error {
		cancel()
		return <-done
	}
	pass(15 * time.Second)
}

// manifests lets the process have only the permissions of files of examples/rbac. The
// returned function checks that nothing else was needed.
func (w *world) manifests(names ...string) (check func()) {
	w.Helper()
	var contents [][]byte
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join("..", "examples", "rbac", name))
		if err != nil {
			w.Fatal(err)
		}
		contents = append(contents, content)
	}
	rbac, err := apitest.RBACFrom(contents...)
	if err != nil {
		w.Fatal(err)
	}
	w.s.Authorize(rbac)
	w.change = func(cfg *vkadapter.NodeConfig) {
		cfg.Client = w.s.Client(apitest.ServiceAccountUser("kubewright", "virtual-node"))
	}
	return func() {
		w.Helper()
		for _, r := range w.s.Requests(apitest.Match{}) {
			if r.Code == http.StatusForbidden {
				w.Errorf("refused: %v", r)
			}
		}
	}
}

// logs lets the next process log. The function that it returns counts the lines with a text.
func (w *world) logs(text string) (count func() int) {
	var mu sync.Mutex
	n := 0
	w.logger = funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(args, text) {
			n++
		}
	}, funcr.Options{})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// events returns the number of events of a reason about pods.
func (w *world) events(reason string) (n int) {
	for _, event := range apitest.List[*eventsv1.Event](w.s, "") {
		if event.Reason == reason {
			n++
		}
	}
	return n
}

// stop ends the process in an orderly way.
func (w *world) stop() {
	if w.end == nil {
		return
	}
	if err := w.finish(); err != nil {
		w.Errorf("Run: %v", err)
	}
}

// finish ends the process, and returns the error of Run.
func (w *world) finish() error {
	end := w.end
	w.end = nil
	return end()
}

// kill ends the process without a further request.
func (w *world) kill() {
	remove := w.s.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
	w.stop()
	remove()
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pod makes a pod of the node.
func (w *world) pod(name string, policy corev1.RestartPolicy) types.UID {
	w.uids++
	uid := types.UID(fmt.Sprintf("uid-%d", w.uids))
	links := false
	w.s.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uid},
		Spec: corev1.PodSpec{
			NodeName: nodeName, RestartPolicy: policy, EnableServiceLinks: &links, TerminationGracePeriodSeconds: new(int64(30)),
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:1"}},
		},
	})
	return uid
}

func (w *world) get(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.s, "default", name) }

// phase checks the phase of a pod.
func (w *world) phase(when, name string, want corev1.PodPhase) {
	w.Helper()
	pod := w.get(name)
	if pod == nil {
		w.Errorf("%s: pod %s is gone, want it %s", when, name, want)
	} else if pod.Status.Phase != want {
		w.Errorf("%s: pod %s is %s (%s %s), want %s; containers %v", when, name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message, want, pod.Status.ContainerStatuses)
	}
}

func (w *world) delete(name string) {
	w.Helper()
	err := w.s.Client(apitest.User{}).CoreV1().Pods("default").Delete(w.Context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// holds checks which jobs the cloud has.
func (w *world) holds(when string, want ...string) {
	w.Helper()
	if got := w.cloud.names(); !slices.Equal(got, want) {
		w.Errorf("%s: the cloud has the jobs %v, want %v", when, got, want)
	}
}

// once checks that a pod had one job.
func (w *world) once(when string, uids ...types.UID) {
	w.Helper()
	w.times(when, 1, uids...)
}

// times checks how many jobs a pod had.
func (w *world) times(when string, want int, uids ...types.UID) {
	w.Helper()
	for _, uid := range uids {
		if n := w.cloud.started(uid); n != want {
			w.Errorf("%s: pod %s had %d jobs, want %d", when, uid, n, want)
		}
	}
}

// pipes is a listener whose connections are pipes, for bubbles.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 10250} }
