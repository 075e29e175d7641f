// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var pods = &Kind{
	Name: "Pod", Resource: "pods", Views: []View{{GV: corev1.SchemeGroupVersion}},
	Namespaced: true, Status: true,
	subresources: []Subresource{
		{Name: "binding", GVK: corev1.SchemeGroupVersion.WithKind("Binding")},
		{Name: "ephemeralcontainers"},
		{Name: "eviction", GVK: policyv1.SchemeGroupVersion.WithKind("Eviction")},
		{Name: "resize"},
	},
	validName: apivalidation.NameIsDNSSubdomain, Unconditional: true, ReturnsDeleted: true,
	Spec:     func(obj runtime.Object) any { return &obj.(*corev1.Pod).Spec },
	Node:     func(obj runtime.Object) string { return obj.(*corev1.Pod).Spec.NodeName },
	Fields:   podField,
	Defaults: defaultPod,
	Admit:    admitPod,
	OnCreate: func(w *Write, obj runtime.Object) {
		p := obj.(*corev1.Pod)
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qosClass(&p.Spec)}
		tolerateAbsence(p)
	},
	OnUpdate: updatePod,
	validate: validatePod,
	Graceful: func(obj runtime.Object, opts *metav1.DeleteOptions) {
		p := obj.(*corev1.Pod)
		grace := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 0)
		if opts.GracePeriodSeconds != nil {
			grace = *opts.GracePeriodSeconds
		}
		// No kubelet has to stop the pod: it is unscheduled or has ended.
		if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
			grace = 0
		}
		if grace < 0 {
			grace = 1
		}
		opts.GracePeriodSeconds = &grace
	},
}

func podField(obj runtime.Object, path string) (string, bool) {
	p := obj.(*corev1.Pod)
	switch path {
	case "spec.nodeName":
		return p.Spec.NodeName, true
	case "spec.restartPolicy":
		return string(p.Spec.RestartPolicy), true
	case "spec.schedulerName":
		return p.Spec.SchedulerName, true
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, true
	case "spec.hostNetwork":
		return strconv.FormatBool(p.Spec.HostNetwork), true
	case "status.phase":
		return string(p.Status.Phase), true
	case "status.podIP":
		return p.Status.PodIP, true
	case "status.nominatedNodeName":
		return p.Status.NominatedNodeName, true
	}
	return "", false
}

// admitPod is what the admission plugins RuntimeClass and Priority do with a new pod. Of
// RuntimeClass it has one rule only.
func admitPod(w *Write, obj, old runtime.Object) error {
	p := obj.(*corev1.Pod)
	if old != nil {
		return nil
	}
	if len(p.Spec.Overhead) > 0 && p.Spec.RuntimeClassName == nil {
		return refusedPod(p, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return prioritize(w, p)
}

// defaultPod sets the defaults of a pod: those of its spec, and those that only pods have.
func defaultPod(obj runtime.Object) {
	p := obj.(*corev1.Pod)
	defaultPodSpec(&p.Spec)
	if p.Spec.EnableServiceLinks == nil {
		p.Spec.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
	EachContainer(p, func(c *corev1.Container) {
		for k, v := range c.Resources.Limits {
			if _, ok := c.Resources.Requests[k]; !ok {
				if c.Resources.Requests == nil {
					c.Resources.Requests = corev1.ResourceList{}
				}
				c.Resources.Requests[k] = v.DeepCopy()
			}
		}
	})
	defaultIPs(&p.Status)
}

// defaultPodSpec sets the defaults that a kubelet or another node agent reads. It
// does not set those of volumes of storage systems.
func defaultPodSpec(s *corev1.PodSpec) {
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.SchedulerName == "" {
		s.SchedulerName = corev1.DefaultSchedulerName
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds)
	} else if *s.TerminationGracePeriodSeconds < 0 {
		s.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
	eachContainer(s, func(c *corev1.Container) {
		defaultContainer(c)
		for i := range c.Ports {
			if s.HostNetwork && c.Ports[i].HostPort == 0 {
				c.Ports[i].HostPort = c.Ports[i].ContainerPort
			}
		}
	})
}

func defaultContainer(c *corev1.Container) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
		if latest(c.Image) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	if c.TerminationMessagePath == "" {
		c.TerminationMessagePath = corev1.TerminationMessagePathDefault
	}
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	}
	for i := range c.Ports {
		if c.Ports[i].Protocol == "" {
			c.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
		}
	}
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(probe)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil && ref.APIVersion == "" {
		ref.APIVersion = "v1"
	}
}

func defaultHTTPGet(get *corev1.HTTPGetAction) {
	if get == nil {
		return
	}
	if get.Path == "" {
		get.Path = "/"
	}
	if get.Scheme == "" {
		get.Scheme = corev1.URISchemeHTTP
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = ptr.To("")
	}
	for _, f := range []struct {
		value    *int32
		standard int32
	}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
		if *f.value == 0 {
			*f.value = f.standard
		}
	}
}

// defaultVolume makes a volume without a source an empty directory, and sets the modes of
// files.
func defaultVolume(s *corev1.VolumeSource) {
	mode := func(m **int32) {
		if *m == nil {
			*m = ptr.To[int32](0o644)
		}
	}
	files := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			defaultFieldRef(items[i].FieldRef)
		}
	}
	switch {
	case *s == corev1.VolumeSource{}:
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	case s.HostPath != nil && s.HostPath.Type == nil:
		s.HostPath.Type = ptr.To(corev1.HostPathUnset)
	case s.Secret != nil:
		mode(&s.Secret.DefaultMode)
	case s.ConfigMap != nil:
		mode(&s.ConfigMap.DefaultMode)
	case s.DownwardAPI != nil:
		mode(&s.DownwardAPI.DefaultMode)
		files(s.DownwardAPI.Items)
	case s.Projected != nil:
		mode(&s.Projected.DefaultMode)
		for _, source := range s.Projected.Sources {
			if source.DownwardAPI != nil {
				files(source.DownwardAPI.Items)
			}
			if t := source.ServiceAccountToken; t != nil && t.ExpirationSeconds == nil {
				t.ExpirationSeconds = ptr.To[int64](3600)
			}
		}
	}
}

// EachContainer calls f with the init containers, the containers and the ephemeral
// containers of a pod.
func EachContainer(p *corev1.Pod, f func(*corev1.Container)) { eachContainer(&p.Spec, f) }

func eachContainer(s *corev1.PodSpec, f func(*corev1.Container)) {
	for i := range s.InitContainers {
		f(&s.InitContainers[i])
	}
	for i := range s.Containers {
		f(&s.Containers[i])
	}
	for i := range s.EphemeralContainers {
		f((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
}

// latest reports whether an image reference means the tag latest.
func latest(image string) bool {
	if image == "" || slices.Contains([]byte(image), '@') {
		return false
	}
	for i := len(image) - 1; i >= 0 && image[i] != '/'; i-- {
		if image[i] == ':' {
			return image[i+1:] == "latest"
		}
	}
	return true
}

// defaultIPs keeps the field for one address and the list of addresses equal, for
// old and new clients.
func defaultIPs(s *corev1.PodStatus) {
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
}

// tolerateAbsence is the admission plugin DefaultTolerationSeconds: it adds the
// tolerations of a node that is not ready or unreachable for 300 s.
func tolerateAbsence(p *corev1.Pod) {
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerated := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
			return (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
				Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)})
		}
	}
}

// qosClass returns the quality of service class of a pod.
func qosClass(s *corev1.PodSpec) corev1.PodQOSClass {
	any, guaranteed := false, len(s.Containers) > 0
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for _, c := range list {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
				any = any || !request.IsZero() || !limit.IsZero()
				guaranteed = guaranteed && !limit.IsZero() && request.Cmp(limit) == 0
			}
		}
	}
	switch {
	case guaranteed:
		return corev1.PodQOSGuaranteed
	case any:
		return corev1.PodQOSBurstable
	}
	return corev1.PodQOSBestEffort
}

// updatePod keeps a write of the pod or of a subresource from changing the other
// parts of the pod.
func updatePod(w *Write, obj, old runtime.Object) {
	p, o := obj.(*corev1.Pod), old.(*corev1.Pod)
	switch w.Subresource {
	case "":
		p.Status = o.Status
		tolerateAbsence(p)
	case "status":
		p.Spec = o.Spec
		p.OwnerReferences = o.OwnerReferences
		keepStatus(&p.Status, &o.Status)
	case "ephemeralcontainers":
		ephemeral := p.Spec.EphemeralContainers
		p.Spec, p.Status = o.Spec, o.Status
		p.Spec.EphemeralContainers = ephemeral
		keepMeta(p, o)
	case "resize":
		containers, inits := resized(p.Spec.Containers, o.Spec.Containers), resized(p.Spec.InitContainers, o.Spec.InitContainers)
		p.Spec, p.Status = o.Spec, o.Status
		p.Spec.Containers, p.Spec.InitContainers = containers, inits
		keepMeta(p, o)
	}
}

// keepMeta restores the metadata, which a write of a part of spec must not change.
func keepMeta(p, o *corev1.Pod) {
	p.Labels, p.Annotations = maps.Clone(o.Labels), maps.Clone(o.Annotations)
	p.OwnerReferences, p.Finalizers = o.OwnerReferences, o.Finalizers
}

// keepStatus restores the fields of the status that a write does not clear by
// leaving them out.
func keepStatus(s, o *corev1.PodStatus) {
	if s.QOSClass == "" {
		s.QOSClass = o.QOSClass
	}
	if s.ResourceClaimStatuses == nil {
		s.ResourceClaimStatuses = o.ResourceClaimStatuses
	}
	if s.ExtendedResourceClaimStatus == nil {
		s.ExtendedResourceClaimStatus = o.ExtendedResourceClaimStatus
	}
	if s.ObservedGeneration == 0 {
		s.ObservedGeneration = o.ObservedGeneration
	}
	for i := range s.Conditions {
		if s.Conditions[i].ObservedGeneration != 0 {
			continue
		}
		for _, c := range o.Conditions {
			if c.Type == s.Conditions[i].Type {
				s.Conditions[i].ObservedGeneration = c.ObservedGeneration
			}
		}
	}
}

// SetPodCondition adds or changes a condition and reports whether it did.
func SetPodCondition(p *corev1.Pod, c corev1.PodCondition) bool {
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	for i := range p.Status.Conditions {
		o := &p.Status.Conditions[i]
		if o.Type != c.Type {
			continue
		}
		if o.Status == c.Status {
			c.LastTransitionTime = o.LastTransitionTime
		}
		if *o == c {
			return false
		}
		*o = c
		return true
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
	return true
}

// validatePod checks the structure of a pod, which fields change after its
// creation, and its status. The real server checks more.
func validatePod(w *Write, obj, old runtime.Object) field.ErrorList {
	p := obj.(*corev1.Pod)
	if old == nil {
		errs := validatePodSpec(&p.Spec, field.NewPath("spec"))
		if len(p.Spec.EphemeralContainers) > 0 {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
		}
		return errs
	}
	o := old.(*corev1.Pod)
	switch w.Subresource {
	case "status":
		return validatePodStatus(w, p, o)
	case "":
		return append(validatePodSpec(&p.Spec, field.NewPath("spec")), validatePodChange(&p.Spec, &o.Spec)...)
	case "ephemeralcontainers":
		return validateEphemeral(&p.Spec, o.Spec.EphemeralContainers)
	case "resize":
		return validateResize(w, p, o)
	}
	return nil
}

func validatePodSpec(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	volumes, errs := validateVolumes(s.Volumes, path.Child("volumes"))
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	names := sets.New[string]()
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"containers", s.Containers}, {"initContainers", s.InitContainers}} {
		for i, c := range list.containers {
			at := path.Child(list.name).Index(i)
			errs = append(errs, validateNames(&c, names, at)...)
			errs = append(errs, validateContainer(&c, volumes, at)...)
			errs = append(errs, validateRunning(&c, list.name == "initContainers", at)...)
		}
	}
	switch s.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	default:
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), s.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	if s.NodeName != "" {
		for _, msg := range apivalidation.NameIsDNSSubdomain(s.NodeName, false) {
			errs = append(errs, field.Invalid(path.Child("nodeName"), s.NodeName, msg))
		}
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	errs = append(errs, validateHostPorts(s, path)...)
	errs = append(errs, validatePodSecurity(s.SecurityContext, path.Child("securityContext"))...)
	errs = append(errs, validateDNS(s, path)...)
	errs = append(errs, validateScheduling(s, path)...)
	return append(errs, validateClaims(s, path)...)
}

// validateNames checks the name and the image of a container, and adds the name to names.
func validateNames(c *corev1.Container, names sets.Set[string], at *field.Path) (errs field.ErrorList) {
	if c.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		for _, msg := range utilvalidation.IsDNS1123Label(c.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), c.Name, msg))
		}
	}
	if names.Has(c.Name) {
		errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
	}
	names.Insert(c.Name)
	if c.Image == "" {
		errs = append(errs, field.Required(at.Child("image"), ""))
	}
	return errs
}

// podMayChange is the server's list of the fields of a spec that are not
// immutable.
const podMayChange = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

func validatePodChange(s, o *corev1.PodSpec) (errs field.ErrorList) {
	path := field.NewPath("spec")
	if len(s.Containers) != len(o.Containers) {
		return append(errs, field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(s.InitContainers) != len(o.InitContainers) {
		return append(errs, field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	deadline := path.Child("activeDeadlineSeconds")
	switch n, d := s.ActiveDeadlineSeconds, o.ActiveDeadlineSeconds; {
	case n == nil && d != nil:
		errs = append(errs, field.Invalid(deadline, n, "must not update from a positive integer to nil value"))
	case n != nil && d != nil && *n > *d:
		errs = append(errs, field.Invalid(deadline, *n, "must be less than or equal to previous value"))
	}
	for _, was := range o.Tolerations {
		if !slices.ContainsFunc(s.Tolerations, func(t corev1.Toleration) bool {
			t.TolerationSeconds = was.TolerationSeconds
			return equality.Semantic.DeepEqual(t, was)
		}) {
			errs = append(errs, field.Forbidden(path.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds"))
			break
		}
	}
	for i, g := range s.SchedulingGates {
		if !slices.Contains(o.SchedulingGates, g) {
			errs = append(errs, field.Forbidden(path.Child("schedulingGates").Index(i).Child("name"), "only deletion is allowed, but found new scheduling gate '"+g.Name+"'"))
		}
	}
	// All other fields must be equal.
	n := s.DeepCopy()
	if len(o.SchedulingGates) > 0 { // selectors and affinities to nodes may become stricter
		for k, v := range o.NodeSelector {
			if got, ok := s.NodeSelector[k]; !ok || got != v {
				errs = append(errs, field.Invalid(path.Child("nodeSelector"), s.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
				break
			}
		}
		n.NodeSelector, n.Affinity = o.NodeSelector, withNodeAffinity(s.Affinity, o.Affinity)
	}
	for i := range n.Containers {
		n.Containers[i].Image = o.Containers[i].Image
	}
	for i := range n.InitContainers {
		n.InitContainers[i].Image = o.InitContainers[i].Image
	}
	n.ActiveDeadlineSeconds, n.Tolerations, n.SchedulingGates = o.ActiveDeadlineSeconds, o.Tolerations, o.SchedulingGates
	if !equality.Semantic.DeepEqual(n, o) {
		errs = append(errs, field.Forbidden(path, podMayChange))
	}
	return errs
}

// withNodeAffinity returns s with the affinity to nodes of o.
func withNodeAffinity(s, o *corev1.Affinity) *corev1.Affinity {
	n, was := ptr.Deref(s, corev1.Affinity{}), ptr.Deref(o, corev1.Affinity{})
	n.NodeAffinity = was.NodeAffinity
	if o == nil && n == was {
		return nil
	}
	return &n
}

func validatePodStatus(w *Write, p, o *corev1.Pod) (errs field.ErrorList) {
	path := field.NewPath("status")
	if p.Status.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), p.Status.ObservedGeneration, "must be a non-negative integer"))
	}
	if p.Status.QOSClass != o.Status.QOSClass {
		errs = append(errs, field.Invalid(path.Child("qosClass"), p.Status.QOSClass, apivalidation.FieldImmutableErrorMsg))
	}
	if n := p.Status.NominatedNodeName; n != "" && n != o.Status.NominatedNodeName && o.Spec.NodeName != "" && w.Minor >= 35 {
		errs = append(errs, field.Forbidden(path.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node"))
	}
	all := w.Minor >= 36 && mayRestartAll(&o.Spec)
	may := func(containers []corev1.Container) func(corev1.ContainerStatus) bool {
		return func(was corev1.ContainerStatus) bool {
			return all || mayRestart(&o.Spec, containers, was.Name, was.State.Terminated.ExitCode)
		}
	}
	never := func(corev1.ContainerStatus) bool { return false }
	errs = append(errs, validateTransition(p.Status.ContainerStatuses, o.Status.ContainerStatuses, may(o.Spec.Containers), path.Child("containerStatuses"))...)
	errs = append(errs, validateTransition(p.Status.InitContainerStatuses, o.Status.InitContainerStatuses, may(o.Spec.InitContainers), path.Child("initContainerStatuses"))...)
	errs = append(errs, validateTransition(p.Status.EphemeralContainerStatuses, o.Status.EphemeralContainerStatuses, never, path.Child("ephemeralContainerStatuses"))...)
	families := map[bool]bool{}
	for i, ip := range p.Status.PodIPs {
		at := path.Child("podIPs").Index(i)
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil {
			errs = append(errs, field.Invalid(at, ip.IP, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
			continue
		}
		if families[addr.Is4()] {
			errs = append(errs, field.Invalid(path.Child("podIPs"), internalIPs(p.Status.PodIPs), "may specify no more than one IP for each IP family"))
		}
		families[addr.Is4()] = true
	}
	return errs
}

// internalIPs returns addresses in the internal type of the real server, which
// error messages quote.
func internalIPs(ips []corev1.PodIP) (out []struct{ IP string }) {
	for _, ip := range ips {
		out = append(out, struct{ IP string }{ip.IP})
	}
	return out
}

// validateTransition rejects the restart of a container that must not restart.
func validateTransition(s, o []corev1.ContainerStatus, may func(was corev1.ContainerStatus) bool, path *field.Path) (errs field.ErrorList) {
	for i, was := range o {
		if was.State.Terminated == nil {
			continue
		}
		for _, now := range s {
			if now.Name == was.Name && now.State.Terminated == nil && !may(was) {
				errs = append(errs, field.Forbidden(path.Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	return errs
}

// mayRestartAll reports whether a rule of a container can restart all containers.
func mayRestartAll(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// mayRestart reports whether the one of containers that ended with code restarts, by its
// own policy and rules or by the policy of the pod.
func mayRestart(spec *corev1.PodSpec, containers []corev1.Container, name string, code int32) bool {
	policy := spec.RestartPolicy
	for _, c := range containers {
		if c.Name != name {
			continue
		}
		for _, rule := range c.RestartPolicyRules {
			if codes := rule.ExitCodes; codes != nil {
				in := false
				for _, v := range codes.Values {
					in = in || v == code
				}
				if in == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
					return true
				}
			}
		}
		if c.RestartPolicy != nil {
			policy = corev1.RestartPolicy(*c.RestartPolicy)
		}
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}
