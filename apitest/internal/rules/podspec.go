// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// What the fields of a pod's spec must be that are about the pod as a whole, and the
// probes and handlers of its containers.

// handler is what a probe or a lifecycle hook does.
type handler struct {
	exec  *corev1.ExecAction
	get   *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

// validateHandler requires exactly one action.
func validateHandler(h handler, p *field.Path) (errs field.ErrorList) {
	handlers := 0
	first := func(set bool, child string) bool {
		if !set {
			return false
		}
		if handlers++; handlers > 1 {
			errs = append(errs, field.Forbidden(p.Child(child), "may not specify more than 1 handler type"))
		}
		return handlers == 1
	}
	if first(h.exec != nil, "exec") && len(h.exec.Command) == 0 {
		errs = append(errs, field.Required(p.Child("exec").Child("command"), ""))
	}
	if first(h.get != nil, "httpGet") {
		gp := p.Child("httpGet")
		if h.get.Path == "" {
			errs = append(errs, field.Required(gp.Child("path"), ""))
		}
		errs = append(errs, validatePort(h.get.Port, gp.Child("port"))...)
		errs = append(errs, requireOneOf(gp.Child("scheme"), h.get.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	}
	if first(h.tcp != nil, "tcpSocket") {
		errs = append(errs, validatePort(h.tcp.Port, p.Child("tcpSocket").Child("port"))...)
	}
	if first(h.grpc != nil, "grpc") {
		errs = append(errs, validatePort(intstr.FromInt32(h.grpc.Port), p.Child("grpc").Child("port"))...)
	}
	first(h.sleep != nil, "sleep")
	if handlers == 0 {
		errs = append(errs, field.Required(p, "must specify a handler type"))
	}
	return errs
}

// validatePort checks the number or the name of a port.
func validatePort(port intstr.IntOrString, p *field.Path) (errs field.ErrorList) {
	if port.Type == intstr.Int {
		for _, msg := range utilvalidation.IsValidPortNum(int(port.IntVal)) {
			errs = append(errs, field.Invalid(p, port.IntVal, msg))
		}
		return errs
	}
	for _, msg := range utilvalidation.IsValidPortName(port.StrVal) {
		errs = append(errs, field.Invalid(p, port.StrVal, msg))
	}
	return errs
}

func validateProbe(probe *corev1.Probe, mustBeOne bool, p *field.Path) (errs field.ErrorList) {
	if probe == nil {
		return nil
	}
	errs = append(errs, validateHandler(handler{exec: probe.Exec, get: probe.HTTPGet, tcp: probe.TCPSocket, grpc: probe.GRPC}, p)...)
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds}, {"timeoutSeconds", probe.TimeoutSeconds}, {"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold}, {"failureThreshold", probe.FailureThreshold},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(f.value), p.Child(f.name))...)
	}
	if mustBeOne && probe.SuccessThreshold != 1 {
		errs = append(errs, field.Invalid(p.Child("successThreshold"), probe.SuccessThreshold, "must be 1"))
	}
	return errs
}

// validateRunning checks what happens while a container runs. An init container has none
// of it, unless it is a sidecar.
func validateRunning(c *corev1.Container, init bool, p *field.Path) (errs field.ErrorList) {
	if init && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways) {
		for _, f := range []struct {
			name string
			set  bool
		}{{"lifecycle", c.Lifecycle != nil}, {"livenessProbe", c.LivenessProbe != nil}, {"readinessProbe", c.ReadinessProbe != nil}, {"startupProbe", c.StartupProbe != nil}} {
			if f.set {
				errs = append(errs, field.Forbidden(p.Child(f.name), "may not be set for init containers without restartPolicy=Always"))
			}
		}
		return errs
	}
	if l := c.Lifecycle; l != nil {
		for _, hook := range []struct {
			name string
			*corev1.LifecycleHandler
		}{{"postStart", l.PostStart}, {"preStop", l.PreStop}} {
			if h := hook.LifecycleHandler; h != nil {
				errs = append(errs, validateHandler(handler{exec: h.Exec, get: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}, p.Child("lifecycle").Child(hook.name))...)
			}
		}
	}
	errs = append(errs, validateProbe(c.LivenessProbe, true, p.Child("livenessProbe"))...)
	errs = append(errs, validateProbe(c.ReadinessProbe, false, p.Child("readinessProbe"))...)
	return append(errs, validateProbe(c.StartupProbe, true, p.Child("startupProbe"))...)
}

func validateID(id *int64, p *field.Path) (errs field.ErrorList) {
	if id != nil {
		for _, msg := range utilvalidation.IsValidUserID(*id) {
			errs = append(errs, field.Invalid(p, *id, msg))
		}
	}
	return errs
}

// internalSecurity is a security context in the internal type of the real server, which
// error messages quote.
type internalSecurity struct {
	Capabilities             *corev1.Capabilities
	Privileged               *bool
	SELinuxOptions           *corev1.SELinuxOptions
	WindowsOptions           *corev1.WindowsSecurityContextOptions
	RunAsUser, RunAsGroup    *int64
	RunAsNonRoot             *bool
	ReadOnlyRootFilesystem   *bool
	AllowPrivilegeEscalation *bool
	ProcMount                *corev1.ProcMountType
	SeccompProfile           *corev1.SeccompProfile
	AppArmorProfile          *corev1.AppArmorProfile
}

func validateSecurity(s *corev1.SecurityContext, p *field.Path) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	errs = append(errs, validateID(s.RunAsUser, p.Child("runAsUser"))...)
	errs = append(errs, validateID(s.RunAsGroup, p.Child("runAsGroup"))...)
	if s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation && s.Privileged != nil && *s.Privileged {
		errs = append(errs, field.Invalid(p, internalSecurity{s.Capabilities, s.Privileged, s.SELinuxOptions, s.WindowsOptions, s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot,
			s.ReadOnlyRootFilesystem, s.AllowPrivilegeEscalation, s.ProcMount, s.SeccompProfile, s.AppArmorProfile}, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
	}
	return errs
}

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

func validatePodSecurity(s *corev1.PodSecurityContext, p *field.Path) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	errs = append(errs, validateID(s.FSGroup, p.Child("fsGroup"))...)
	errs = append(errs, validateID(s.RunAsUser, p.Child("runAsUser"))...)
	errs = append(errs, validateID(s.RunAsGroup, p.Child("runAsGroup"))...)
	for i := range s.SupplementalGroups {
		errs = append(errs, validateID(&s.SupplementalGroups[i], p.Child("supplementalGroups").Index(i))...)
	}
	names := sets.New[string]()
	for i, c := range s.Sysctls {
		at := p.Child("sysctls").Index(i).Child("name")
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(c.Name) > 253 || !sysctlName.MatchString(c.Name):
			errs = append(errs, field.Invalid(at, c.Name, "must have at most 253 characters and match regex "+sysctlName.String()))
		case names.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		names.Insert(c.Name)
	}
	return errs
}

// validateHostPorts requires that each port of the host is used once, and in the network
// of the host that it is the port of the container.
func validateHostPorts(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	used := sets.New[string]()
	for i, c := range s.Containers {
		for j, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			at := p.Child("containers").Index(i).Child("ports").Index(j).Child("hostPort")
			key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
			if used.Has(key) {
				errs = append(errs, field.Duplicate(at, key))
			}
			used.Insert(key)
			if s.HostNetwork && port.HostPort != port.ContainerPort {
				errs = append(errs, field.Invalid(at, port.HostPort, "must match `containerPort` when `hostNetwork` is true"))
			}
		}
	}
	return errs
}

func validateDNS(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	errs = append(errs, requireOneOf(p.Child("dnsPolicy"), s.DNSPolicy, corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)...)
	if s.DNSPolicy == corev1.DNSNone && s.DNSConfig == nil {
		errs = append(errs, field.Required(p.Child("dnsConfig"), fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone)))
	}
	for i, alias := range s.HostAliases {
		at := p.Child("hostAliases").Index(i)
		errs = append(errs, utilvalidation.IsValidIPForLegacyField(at.Child("ip"), alias.IP, false, nil)...)
		for j, name := range alias.Hostnames {
			for _, msg := range utilvalidation.IsDNS1123Subdomain(name) {
				errs = append(errs, field.Invalid(at.Child("hostnames").Index(j), name, msg))
			}
		}
	}
	for _, f := range []struct{ name, value string }{{"hostname", s.Hostname}, {"subdomain", s.Subdomain}} {
		if f.value != "" {
			for _, msg := range utilvalidation.IsDNS1123Label(f.value) {
				errs = append(errs, field.Invalid(p.Child(f.name), f.value, msg))
			}
		}
	}
	return errs
}

func validateTolerations(tolerations []corev1.Toleration, path *field.Path) (errs field.ErrorList) {
	for i, t := range tolerations {
		p := path.Index(i)
		if t.Key != "" {
			errs = append(errs, metav1validation.ValidateLabelName(t.Key, p.Child("key"))...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs, field.Invalid(p.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			for _, msg := range utilvalidation.IsValidLabelValue(t.Value) {
				errs = append(errs, field.Invalid(p.Child("operator"), t.Value, msg))
			}
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(p.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'"))
			}
		default:
			errs = append(errs, field.NotSupported(p.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
		if t.Effect != "" {
			errs = append(errs, requireOneOf(p.Child("effect"), t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		}
	}
	return errs
}

// qualified checks a name with an optional domain.
func qualified(name string, p *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(p, name, msg))
	}
	return errs
}

// validateScheduling checks what the scheduler reads.
func validateScheduling(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	errs = append(errs, metav1validation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))...)
	errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"))...)
	for i, g := range s.ReadinessGates {
		errs = append(errs, qualified(string(g.ConditionType), p.Child("readinessGates").Index(i).Child("conditionType"))...)
	}
	for i, g := range s.SchedulingGates {
		errs = append(errs, qualified(g.Name, p.Child("schedulingGates").Index(i))...)
	}
	for i, c := range s.TopologySpreadConstraints {
		at := p.Child("topologySpreadConstraints").Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty"))
		}
		if known := []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}; !slices.Contains(known, c.WhenUnsatisfiable) {
			errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, known))
		}
	}
	if a := s.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil && len(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) == 0 {
		errs = append(errs, field.Required(p.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"), "must have at least one node selector term"))
	}
	if s.OS != nil {
		errs = append(errs, requireOneOf(p.Child("os"), s.OS.Name, corev1.Linux, corev1.Windows)...)
	}
	if s.ServiceAccountName != "" {
		for _, msg := range apivalidation.ValidateServiceAccountName(s.ServiceAccountName, false) {
			errs = append(errs, field.Invalid(p.Child("serviceAccountName"), s.ServiceAccountName, msg))
		}
	}
	return errs
}

// internalClaim is a reference to a claim in the internal type of the real server, which
// error messages quote.
type internalClaim struct {
	Name                                         string
	ResourceClaimName, ResourceClaimTemplateName *string
}

// validateClaims checks the claims of a pod, and that its containers use no others.
func validateClaims(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	names := sets.New[string]()
	for i, c := range s.ResourceClaims {
		at := p.Child("resourceClaims").Index(i)
		if names.Has(c.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		names.Insert(c.Name)
		if c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil {
			errs = append(errs, field.Invalid(at, internalClaim(c), "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"))
		}
	}
	for i, c := range s.Containers {
		for j, claim := range c.Resources.Claims {
			if names.Has(claim.Name) {
				continue
			}
			e := field.NotFound(p.Child("containers").Index(i).Child("resources", "claims").Index(j), claim.Name)
			e.Detail = "must be one of the names in pod.spec.resourceClaims"
			if names.Len() == 0 {
				e.Detail += " which is empty"
			}
			errs = append(errs, e)
		}
	}
	return errs
}
