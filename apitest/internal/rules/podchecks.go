// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What a pod's volumes and containers must be, as far as a node agent or a controller that
// makes pods can get it wrong.

// validateVolumes returns the errors of volumes, and the names of the volumes.
func validateVolumes(volumes []corev1.Volume, at *field.Path) (names sets.Set[string], errs field.ErrorList) {
	names = sets.New[string]()
	for i := range volumes {
		v, p := &volumes[i], at.Index(i)
		errs = append(errs, validateVolumeSource(&v.VolumeSource, p)...)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(p.Child("name"), ""))
		case names.Has(v.Name):
			errs = append(errs, field.Duplicate(p.Child("name"), v.Name))
		default:
			for _, msg := range utilvalidation.IsDNS1123Label(v.Name) {
				errs = append(errs, field.Invalid(p.Child("name"), v.Name, msg))
			}
		}
		names.Insert(v.Name)
	}
	return names, errs
}

// hostPathTypes are the values of HostPathVolumeSource.Type.
var hostPathTypes = []corev1.HostPathType{corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev, corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate,
	corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket}

func validateVolumeSource(s *corev1.VolumeSource, p *field.Path) (errs field.ErrorList) {
	sources := 0
	// first reports whether a source is the first one, which is the one that is checked.
	first := func(set bool, child string) bool {
		if !set {
			return false
		}
		if sources++; sources > 1 {
			errs = append(errs, field.Forbidden(p.Child(child), "may not specify more than 1 volume type"))
			return false
		}
		return true
	}
	if first(s.EmptyDir != nil, "emptyDir") && s.EmptyDir.SizeLimit != nil && s.EmptyDir.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(p.Child("emptyDir").Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	if first(s.HostPath != nil, "hostPath") {
		h, hp := s.HostPath, p.Child("hostPath")
		if h.Path == "" {
			errs = append(errs, field.Required(hp.Child("path"), ""))
		} else {
			errs = append(errs, withoutBacksteps(h.Path, hp.Child("path"))...)
		}
		if h.Type != nil && !slices.Contains(hostPathTypes, *h.Type) {
			errs = append(errs, field.NotSupported(hp.Child("type"), *h.Type, hostPathTypes))
		}
	}
	if first(s.Secret != nil, "secret") {
		sp := p.Child("secret")
		if s.Secret.SecretName == "" {
			errs = append(errs, field.Required(sp.Child("secretName"), ""))
		}
		errs = append(errs, validateKeys(s.Secret.Items, s.Secret.DefaultMode, sp)...)
	}
	if first(s.PersistentVolumeClaim != nil, "persistentVolumeClaim") && s.PersistentVolumeClaim.ClaimName == "" {
		errs = append(errs, field.Required(p.Child("persistentVolumeClaim").Child("claimName"), ""))
	}
	if first(s.ConfigMap != nil, "configMap") {
		cp := p.Child("configMap")
		if s.ConfigMap.Name == "" {
			errs = append(errs, field.Required(cp.Child("name"), ""))
		}
		errs = append(errs, validateKeys(s.ConfigMap.Items, s.ConfigMap.DefaultMode, cp)...)
	}
	if first(s.DownwardAPI != nil, "downwardAPI") {
		for _, file := range s.DownwardAPI.Items {
			errs = append(errs, validateDownwardFile(&file, p.Child("downwardAPI"))...)
		}
	}
	if first(s.Projected != nil, "projected") {
		errs = append(errs, validateProjected(s.Projected, p.Child("projected"))...)
	}
	// Sources whose fields are not checked.
	others := map[string]bool{
		"awsElasticBlockStore": s.AWSElasticBlockStore != nil, "azureDisk": s.AzureDisk != nil, "azureFile": s.AzureFile != nil, "cephfs": s.CephFS != nil,
		"cinder": s.Cinder != nil, "csi": s.CSI != nil, "ephemeral": s.Ephemeral != nil, "fc": s.FC != nil,
		"flexVolume": s.FlexVolume != nil, "flocker": s.Flocker != nil, "gcePersistentDisk": s.GCEPersistentDisk != nil, "gitRepo": s.GitRepo != nil,
		"glusterfs": s.Glusterfs != nil, "image": s.Image != nil, "iscsi": s.ISCSI != nil, "nfs": s.NFS != nil, "photonPersistentDisk": s.PhotonPersistentDisk != nil,
		"portworxVolume": s.PortworxVolume != nil, "quobyte": s.Quobyte != nil, "rbd": s.RBD != nil,
		"scaleIO": s.ScaleIO != nil, "storageos": s.StorageOS != nil, "vsphereVolume": s.VsphereVolume != nil,
	}
	for _, child := range slices.Sorted(maps.Keys(others)) {
		first(others[child], child)
	}
	return errs
}

// validateProjected checks the sources of a projected volume.
func validateProjected(v *corev1.ProjectedVolumeSource, p *field.Path) (errs field.ErrorList) {
	for i, source := range v.Sources {
		at := p.Child("sources").Index(i)
		if s := source.Secret; s != nil {
			if s.Name == "" {
				errs = append(errs, field.Required(at.Child("secret").Child("name"), ""))
			}
			errs = append(errs, validateKeys(s.Items, nil, at.Child("secret"))...)
		}
		if s := source.ConfigMap; s != nil {
			if s.Name == "" {
				errs = append(errs, field.Required(at.Child("configMap").Child("name"), ""))
			}
			errs = append(errs, validateKeys(s.Items, nil, at.Child("configMap"))...)
		}
		if s := source.DownwardAPI; s != nil {
			for _, file := range s.Items {
				errs = append(errs, validateDownwardFile(&file, at.Child("downwardAPI"))...)
			}
		}
		if s := source.ServiceAccountToken; s != nil {
			if s.ExpirationSeconds != nil && *s.ExpirationSeconds < 600 {
				errs = append(errs, field.Invalid(at.Child("serviceAccountToken").Child("expirationSeconds"), *s.ExpirationSeconds, "may not specify a duration less than 10 minutes"))
			}
			if s.Path == "" {
				errs = append(errs, field.Required(p.Child("path"), ""))
			} else {
				errs = append(errs, localPath(s.Path, p.Child("path"))...)
			}
		}
	}
	return errs
}

// downwardFields are the fields of a pod that a volume and a variable may have, of those
// that have a name in a field selector.
var (
	inVolumes   = []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
	inVariables = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	inNeither   = []string{"spec.restartPolicy", "spec.schedulerName", "status.phase"}
)

// validateFieldRef checks a reference to a field of the pod itself.
func validateFieldRef(ref *corev1.ObjectFieldSelector, allowed []string, p *field.Path) field.ErrorList {
	at := p.Child("fieldPath")
	if ref.FieldPath == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if name, _, subscript := strings.Cut(ref.FieldPath, "['"); subscript && strings.HasSuffix(ref.FieldPath, "']") && (name == "metadata.annotations" || name == "metadata.labels") {
		return nil
	}
	switch {
	case slices.Contains(allowed, ref.FieldPath):
		return nil
	case slices.Contains(slices.Concat(inVolumes, inVariables, inNeither), ref.FieldPath):
		return field.ErrorList{field.NotSupported(at, ref.FieldPath, allowed)}
	}
	return field.ErrorList{field.Invalid(at, ref.FieldPath, "error converting fieldPath: field label not supported: "+ref.FieldPath)}
}

func validateDownwardFile(file *corev1.DownwardAPIVolumeFile, p *field.Path) (errs field.ErrorList) {
	if file.Path == "" {
		errs = append(errs, field.Required(p.Child("path"), ""))
	} else {
		errs = append(errs, localPath(file.Path, p.Child("path"))...)
	}
	if file.FieldRef != nil {
		errs = append(errs, validateFieldRef(file.FieldRef, inVolumes, p.Child("fieldRef"))...)
	} else if file.ResourceFieldRef == nil {
		errs = append(errs, field.Required(p, "one of fieldRef and resourceFieldRef is required"))
	}
	return errs
}

// validateSource checks where the value of a variable comes from.
func validateSource(e *corev1.EnvVar, p *field.Path) (errs field.ErrorList) {
	from, sources := e.ValueFrom, 0
	if from == nil {
		return nil
	}
	key := func(name, key string, p *field.Path) {
		sources++
		for _, msg := range apivalidation.NameIsDNSSubdomain(name, false) {
			errs = append(errs, field.Invalid(p.Child("name"), name, msg))
		}
		if key == "" {
			errs = append(errs, field.Required(p.Child("key"), ""))
		} else {
			errs = append(errs, validateDataKey(key, p.Child("key"))...)
		}
	}
	if from.FieldRef != nil {
		sources++
		errs = append(errs, validateFieldRef(from.FieldRef, inVariables, p.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		sources++
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		key(ref.Name, ref.Key, p.Child("configMapKeyRef"))
	}
	if ref := from.SecretKeyRef; ref != nil {
		key(ref.Name, ref.Key, p.Child("secretKeyRef"))
	}
	if from.FileKeyRef != nil {
		sources++
	}
	switch {
	case sources == 0:
		errs = append(errs, field.Invalid(p, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(p, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return errs
}

// withoutBacksteps returns an error if an element of a path is "..".
func withoutBacksteps(target string, p *field.Path) (errs field.ErrorList) {
	if slices.Contains(strings.Split(target, "/"), "..") {
		errs = append(errs, field.Invalid(p, target, "must not contain '..'"))
	}
	return errs
}

// localPath returns an error if a path is not within the directory that it is relative to.
func localPath(target string, p *field.Path) (errs field.ErrorList) {
	if path.IsAbs(target) {
		errs = append(errs, field.Invalid(p, target, "must be a relative path"))
	}
	return append(errs, withoutBacksteps(target, p)...)
}

func validateKeys(items []corev1.KeyToPath, mode *int32, p *field.Path) (errs field.ErrorList) {
	check := func(mode *int32, p *field.Path) {
		if mode != nil && (*mode < 0 || *mode > 0o777) {
			errs = append(errs, field.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive"))
		}
	}
	check(mode, p.Child("defaultMode"))
	for i, it := range items {
		ip := p.Child("items").Index(i)
		if it.Key == "" {
			errs = append(errs, field.Required(ip.Child("key"), ""))
		}
		switch {
		case it.Path == "":
			errs = append(errs, field.Required(ip.Child("path"), ""))
		default:
			errs = append(errs, localPath(it.Path, ip.Child("path"))...)
			if strings.HasPrefix(it.Path, "..") && !strings.HasPrefix(it.Path, "../") {
				errs = append(errs, field.Invalid(ip.Child("path"), it.Path, "must not start with '..'"))
			}
		}
		check(it.Mode, ip.Child("mode"))
	}
	return errs
}

// validateContainer checks the parts of a container that reach a node agent.
func validateContainer(c *corev1.Container, volumes sets.Set[string], p *field.Path) (errs field.ErrorList) {
	if strings.TrimSpace(c.Image) != c.Image {
		errs = append(errs, field.Invalid(p.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, validatePorts(c.Ports, p.Child("ports"))...)
	for i, e := range c.Env {
		ep := p.Child("env").Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(ep.Child("name"), ""))
		} else {
			for _, msg := range utilvalidation.IsRelaxedEnvVarName(e.Name) {
				errs = append(errs, field.Invalid(ep.Child("name"), e.Name, msg))
			}
		}
		errs = append(errs, validateSource(&e, ep.Child("valueFrom"))...)
	}
	for _, e := range c.EnvFrom {
		if (e.ConfigMapRef == nil) == (e.SecretRef == nil) {
			errs = append(errs, field.Invalid(p.Child("envFrom"), "", "must specify one of: `configMapRef` or `secretRef`"))
		}
	}
	mounted := sets.New[string]()
	for i, m := range c.VolumeMounts {
		mp := p.Child("volumeMounts").Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(mp.Child("name"), ""))
		}
		if !volumes.Has(m.Name) {
			errs = append(errs, field.NotFound(mp.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(mp.Child("mountPath"), ""))
		}
		if mounted.Has(m.MountPath) {
			errs = append(errs, field.Invalid(mp.Child("mountPath"), m.MountPath, "must be unique"))
		}
		mounted.Insert(m.MountPath)
		if m.SubPath != "" {
			errs = append(errs, localPath(m.SubPath, p.Child("volumeMounts").Child("subPath"))...)
		}
	}
	errs = append(errs, requireOneOf(p.Child("imagePullPolicy"), c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	errs = append(errs, requireOneOf(p.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validateSecurity(c.SecurityContext, p.Child("securityContext"))...)
	return append(errs, validateResources(&c.Resources, p.Child("resources"))...)
}

var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

func validatePorts(ports []corev1.ContainerPort, at *field.Path) (errs field.ErrorList) {
	names := sets.New[string]()
	for i, port := range ports {
		p := at.Index(i)
		if port.Name != "" {
			if msgs := utilvalidation.IsValidPortName(port.Name); len(msgs) > 0 {
				for _, msg := range msgs {
					errs = append(errs, field.Invalid(p.Child("name"), port.Name, msg))
				}
			} else if names.Has(port.Name) {
				errs = append(errs, field.Duplicate(p.Child("name"), port.Name))
			} else {
				names.Insert(port.Name)
			}
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(p.Child("containerPort"), ""))
		} else {
			for _, msg := range utilvalidation.IsValidPortNum(int(port.ContainerPort)) {
				errs = append(errs, field.Invalid(p.Child("containerPort"), port.ContainerPort, msg))
			}
		}
		if port.HostPort != 0 {
			for _, msg := range utilvalidation.IsValidPortNum(int(port.HostPort)) {
				errs = append(errs, field.Invalid(p.Child("hostPort"), port.HostPort, msg))
			}
		}
		errs = append(errs, requireOneOf(p.Child("protocol"), port.Protocol, protocols...)...)
	}
	return errs
}

// standardResources are the resources of a container without a domain in their names.
var standardResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)

// native reports whether a resource has no domain or one of Kubernetes'.
func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/")
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func validateResources(r *corev1.ResourceRequirements, p *field.Path) (errs field.ErrorList) {
	quantities := func(list corev1.ResourceList, child string) {
		for _, name := range sortedNames(list) {
			q, qp := list[name], p.Child(child).Key(string(name))
			for _, msg := range utilvalidation.IsQualifiedName(string(name)) {
				errs = append(errs, field.Invalid(p.Child(child).Key(string(name)), name, msg))
			}
			if !strings.Contains(string(name), "/") && !standardResources.Has(name) && !hugePages(name) {
				errs = append(errs, field.Invalid(qp, name, "must be a standard resource type or fully qualified"), field.Invalid(qp, name, "must be a standard resource for containers"))
			}
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(qp, q.String(), apivalidation.IsNegativeErrorMsg))
			}
			if !native(name) && q.MilliValue()%1000 != 0 {
				errs = append(errs, field.Invalid(qp, &q, "must be an integer"))
			}
		}
	}
	quantities(r.Limits, "limits")
	quantities(r.Requests, "requests")
	for _, name := range sortedNames(r.Requests) {
		q := r.Requests[name]
		limit, limited := r.Limits[name]
		rp := p.Child("requests")
		switch {
		case limited && !overcommit(name) && q.Cmp(limit) != 0:
			errs = append(errs, field.Invalid(rp, q.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String())))
		case limited && q.Cmp(limit) > 0:
			errs = append(errs, field.Invalid(rp, q.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String())))
		case !limited && !overcommit(name):
			errs = append(errs, field.Required(p.Child("limits"), "Limit must be set for non overcommitable resources"))
		}
	}
	return errs
}

// overcommit reports whether a request may be less than the limit.
func overcommit(name corev1.ResourceName) bool { return native(name) && !hugePages(name) }

func sortedNames(list corev1.ResourceList) (names []corev1.ResourceName) {
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
