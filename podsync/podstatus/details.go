// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// containerDetails removes the fields of cs that the API server would refuse.
func (m *merger) containerDetails(at place, k kind, c *corev1.Container, cs *corev1.ContainerStatus) {
	if cs.User != nil {
		if errs := checkUser(at.path("user"), &m.pod.Spec, cs.User); len(errs) > 0 {
			m.problems = append(m.problems, errs...)
			cs.User = nil
		}
	}
	mounts := cs.VolumeMounts[:0]
	for i := range cs.VolumeMounts {
		if errs := checkMount(at.path("volumeMounts").Index(i), &cs.VolumeMounts[i]); len(errs) > 0 {
			m.problems = append(m.problems, errs...)
			continue
		}
		mounts = append(mounts, cs.VolumeMounts[i])
	}
	cs.VolumeMounts = mounts

	allocated := cs.AllocatedResourcesStatus[:0]
	for i := range cs.AllocatedResourcesStatus {
		path := at.path("allocatedResourcesStatus").Index(i)
		if errs := checkAllocated(path, k, c, m.stored, &cs.AllocatedResourcesStatus[i]); len(errs) > 0 {
			m.problems = append(m.problems, errs...)
			continue
		}
		allocated = append(allocated, cs.AllocatedResourcesStatus[i])
	}
	cs.AllocatedResourcesStatus = allocated

	if cs.AllocatedResources != nil {
		m.resourceList(at.path("allocatedResources"), cs.AllocatedResources)
	}
	if cs.Resources != nil {
		m.requirements(at.path("resources"), cs.Resources)
	}
	if cs.StopSignal != nil && !utf8.ValidString(string(*cs.StopSignal)) {
		m.problem(field.Invalid(at.path("stopSignal"), text(string(*cs.StopSignal), 100), "must be UTF-8"))
		cs.StopSignal = nil
	}
}

// resources takes over the resources observed for the whole pod.
func (m *merger) resources() {
	if m.observed.AllocatedResources != nil {
		m.resourceList(statusPath.Child("allocatedResources"), m.observed.AllocatedResources)
		m.next.AllocatedResources = m.observed.AllocatedResources
	}
	if m.observed.Resources != nil {
		m.requirements(statusPath.Child("resources"), m.observed.Resources)
		m.next.Resources = m.observed.Resources
	}
}

func (m *merger) requirements(path *field.Path, r *corev1.ResourceRequirements) {
	m.resourceList(path.Child("limits"), r.Limits)
	m.resourceList(path.Child("requests"), r.Requests)
	// Claims are part of the spec only.
	r.Claims = nil
}

// resourceList takes names that can't be stored out of list.
func (m *merger) resourceList(path *field.Path, list corev1.ResourceList) {
	for name := range list {
		if name == "" || !utf8.ValidString(string(name)) {
			m.problem(field.Invalid(path, text(string(name), 100), "not a resource name"))
			delete(list, name)
		}
	}
}

func checkUser(path *field.Path, spec *corev1.PodSpec, user *corev1.ContainerUser) field.ErrorList {
	if user == nil || user.Linux == nil {
		return nil
	}
	var errs field.ErrorList
	path = path.Child("linux")
	if spec.OS != nil && spec.OS.Name == corev1.Windows {
		return append(errs, field.Forbidden(path, "the pod is for Windows"))
	}
	if uid := user.Linux.UID; uid < 0 || uid > math.MaxUint32 {
		errs = append(errs, field.Invalid(path.Child("uid"), uid, "must be from 0 to 4294967295"))
	}
	group := func(path *field.Path, gid int64) {
		if gid < 0 || gid > math.MaxInt32 {
			errs = append(errs, field.Invalid(path, gid, "must be from 0 to 2147483647"))
		}
	}
	group(path.Child("gid"), user.Linux.GID)
	for i, gid := range user.Linux.SupplementalGroups {
		group(path.Child("supplementalGroups").Index(i), gid)
	}
	return errs
}

// maxImageRef is the limit of the API for the image of an image volume.
const maxImageRef = 256

func checkMount(path *field.Path, mount *corev1.VolumeMountStatus) field.ErrorList {
	var errs field.ErrorList
	if !utf8.ValidString(mount.Name) || !utf8.ValidString(mount.MountPath) ||
		mount.RecursiveReadOnly != nil && !utf8.ValidString(string(*mount.RecursiveReadOnly)) {
		errs = append(errs, field.Invalid(path, text(mount.Name, 100), "must be UTF-8"))
	}
	if mount.VolumeStatus == nil || mount.VolumeStatus.Image == nil {
		return errs
	}
	path = path.Child("volumeStatus", "image", "imageRef")
	switch ref := mount.VolumeStatus.Image.ImageRef; {
	case ref == "":
		errs = append(errs, field.Required(path, ""))
	case len(ref) > maxImageRef || !utf8.ValidString(ref):
		errs = append(errs, field.Invalid(path, text(ref, 100), fmt.Sprintf("must be UTF-8 of at most %d bytes", maxImageRef)))
	}
	return errs
}

// checkAllocated checks the health of one resource of container c, KEP-4680. If the
// spec does not have the container, c is nil, and the API server accepts any name.
func checkAllocated(path *field.Path, k kind, c *corev1.Container, stored *corev1.PodStatus, r *corev1.ResourceStatus) field.ErrorList {
	if k == ephemeral {
		return field.ErrorList{field.Forbidden(path, "ephemeral containers have no resources")}
	}
	var errs field.ErrorList
	if c != nil && !hasResource(c, stored.ExtendedResourceClaimStatus, r.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), text(string(r.Name), 100), "must be a resource that the container requests or a claim of it"))
	}
	for i := range r.Resources {
		h, path := &r.Resources[i], path.Child("resources").Index(i)
		switch h.Health {
		case corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown:
		default:
			errs = append(errs, field.NotSupported(path.Child("health"), corev1.ResourceHealthStatus(text(string(h.Health), 100)), []corev1.ResourceHealthStatus{
				corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown}))
		}
		if h.Message != nil && (*h.Message == "" || len(*h.Message) > corev1.ResourceHealthMessageMaxLength || !utf8.ValidString(*h.Message)) {
			errs = append(errs, field.Invalid(path.Child("message"), "", fmt.Sprintf("must have from 1 to %d bytes of UTF-8", corev1.ResourceHealthMessageMaxLength)))
		}
		if !utf8.ValidString(string(h.ResourceID)) {
			errs = append(errs, field.Invalid(path.Child("resourceID"), text(string(h.ResourceID), 100), "must be UTF-8"))
		}
		if slices.ContainsFunc(r.Resources[:i], func(other corev1.ResourceHealth) bool { return other.ResourceID == h.ResourceID }) {
			errs = append(errs, field.Duplicate(path.Child("resourceID"), text(string(h.ResourceID), 100)))
		}
	}
	return errs
}

// hasResource reports whether name is one by which the status of container c may
// speak of a resource: a resource that c requests, "claim:<claim>" or
// "claim:<claim>/<request>" of a claim in c's spec, or the same of the claim that
// the scheduler made for extended resources.
func hasResource(c *corev1.Container, extended *corev1.PodExtendedResourceClaimStatus, name corev1.ResourceName) bool {
	ref, isClaim := strings.CutPrefix(string(name), "claim:")
	if !isClaim {
		_, ok := c.Resources.Requests[name]
		return ok
	}
	claim, request, hasRequest := strings.Cut(ref, "/")
	for _, cl := range c.Resources.Claims {
		if cl.Name == claim && cl.Request == request && hasRequest == (cl.Request != "") {
			return true
		}
	}
	if extended == nil || request == "" || extended.ResourceClaimName != claim {
		return false
	}
	for _, r := range extended.RequestMappings {
		if q, ok := c.Resources.Requests[corev1.ResourceName(r.ResourceName)]; ok && !q.IsZero() && r.ContainerName == c.Name && r.RequestName == request {
			return true
		}
	}
	return false
}
