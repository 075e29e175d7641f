// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
)

// Environment holds the variables and the command line of a container's process.
type Environment struct {
	// Vars are the variables, each name once: those of Services by Service, then
	// those of the container in the order of the spec, the keys of an envFrom
	// source by name. A variable that is defined again has the place and the
	// value of its last definition. The same pod and objects give the same order.
	Vars []Var
	// Command and Args are the container's, with references expanded. Empty means
	// the image's.
	Command, Args []string
	// Late are the names, in order, of variables that hold an address which isn't known
	// yet, and of those that refer to one. They are not in Vars, and references to them
	// stand unexpanded in Command and Args. Resolve again, with [Addresses], once
	// the pod has its address.
	Late []string
}

// Strings returns the variables as NAME=value, as in exec.Cmd.Env.
func (e *Environment) Strings() []string {
	out := make([]string, len(e.Vars))
	for i, v := range e.Vars {
		out[i] = v.Name + "=" + v.Value
	}
	return out
}

// Lookup returns the value of the variable of this name.
func (e *Environment) Lookup(name string) (string, bool) {
	for _, v := range e.Vars {
		if v.Name == name {
			return v.Value, true
		}
	}
	return "", false
}

// Container returns the environment of the pod's container, init container or
// ephemeral container of this name.
//
// The error names everything that is missing, joined; each part is a
// [*SourceError], or an error of the API or of ctx. Ask [CanWait] whether to try
// again. Sources marked optional are not missed.
//
// It is an error, too, if references and sources add more than 8 MiB to the variables,
// Command and Args, or more than the container's share of 32 MiB for all containers of
// the pod, of whatever kind. A variable of a source counts 64 bytes more than its name and
// value, and a file with variables counts with its size, which is 1 MiB at most. Linux starts no process with more than 6 MiB; see execve(2).
func (p *Pod) Container(ctx context.Context, name string, addresses Addresses) (Environment, error) {
	c, err := p.container(name)
	if err != nil {
		return Environment{}, &SourceError{Container: name, Field: "name", Err: err}
	}
	b := builder{turn: turn{p: p}, c: c, addresses: addresses.of(p.pod), budget: budget{limit: containerLimit(&p.pod.Spec)}, own: map[string]int{}, late: map[string]bool{}}
	defer b.end()

	links, err := p.serviceVars(ctx)
	if err != nil {
		b.errs = append(b.errs, err)
	}
	b.serviceVars, b.links = links, make(map[string]int, len(links))
	for i := range links {
		b.links[links[i].Name] = i
	}
	for i := 0; i < len(c.EnvFrom) && !b.budget.exceeded && ctx.Err() == nil; i++ {
		b.addFrom(ctx, i, &c.EnvFrom[i])
	}
	for i := 0; i < len(c.Env) && !b.budget.exceeded && ctx.Err() == nil; i++ {
		b.addVar(ctx, &c.Env[i])
	}
	if err := ctx.Err(); err != nil {
		return Environment{}, err
	}
	command, args := b.expandAll(c.Command), b.expandAll(c.Args)
	if b.budget.exceeded {
		return Environment{}, b.budget.err(c.Name, "envFrom, env, command and args", "references and sources add")
	}
	if len(b.errs) > 0 {
		return Environment{}, errors.Join(b.errs...)
	}

	out := Environment{Vars: make([]Var, 0, len(links)+len(b.own)), Command: command, Args: args, Late: slices.Sorted(maps.Keys(b.late))}
	for i, v := range links {
		if _, ok := b.own[v.Name]; !ok && !b.late[v.Name] && b.links[v.Name] == i {
			out.Vars = append(out.Vars, v)
		}
	}
	for i, v := range b.vars {
		if at, ok := b.own[v.Name]; ok && at == i {
			out.Vars = append(out.Vars, v)
		}
	}
	return out, nil
}

// builder makes one container's environment, definition by definition.
type builder struct {
	turn
	c         *corev1.Container
	addresses Addresses
	budget    budget

	serviceVars []Var
	links       map[string]int  // name to the last definition in serviceVars
	vars        []Var           // all definitions of the container, in order
	own         map[string]int  // name to the last definition in vars
	late        map[string]bool // names whose last definition waits for an address
	files       map[filePath]*sourceFile
	copied      *corev1.Pod // for Config.ReadFile
	errs        []error
}

// A filePath names an environment file of the pod.
type filePath struct{ volume, path string }

// A sourceFile is an environment file that variables of the container are read from.
type sourceFile struct {
	wanted map[string]bool // the names that the container takes from it
	read   bool
	envFile
}

// add defines a variable whose value is not in the container's spec.
func (b *builder) add(field, name, value string) {
	if b.budget.spend(len(name) + len(value) + overhead) {
		b.set(field, name, value)
	}
}

// set defines a variable and replaces an earlier one of that name.
func (b *builder) set(field, name, value string) {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		b.fail(&SourceError{Field: field, Wait: true, Err: fmt.Errorf("%q is no name of a variable", name)})
		return
	}
	if strings.ContainsRune(value, 0) {
		b.fail(&SourceError{Field: field, Wait: true, Err: errors.New("the value has a NUL byte, at which a process would take it to end")})
		return
	}
	delete(b.late, name)
	b.own[name] = len(b.vars)
	b.vars = append(b.vars, Var{name, value})
}

// setLate defines a variable whose value isn't known yet.
func (b *builder) setLate(name string) {
	delete(b.own, name)
	b.late[name] = true
}

func (b *builder) fail(err *SourceError) {
	err.Container = b.c.Name
	b.errs = append(b.errs, err)
}

// lookup finds a variable for a reference. It is empty if the limit is exceeded.
func (b *builder) lookup(name string) (string, bool) {
	value, ok := b.find(name)
	if !b.budget.spend(len(value)) {
		return "", true
	}
	return value, ok
}

// find finds a variable. One that comes late hides one of a Service.
func (b *builder) find(name string) (string, bool) {
	if at, ok := b.own[name]; ok {
		return b.vars[at].Value, true
	}
	if b.late[name] {
		return "", false
	}
	if at, ok := b.links[name]; ok {
		return b.serviceVars[at].Value, true
	}
	return "", false
}

func (b *builder) expandAll(in []string) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = Expand(s, b.lookup)
	}
	return out
}

// addFrom defines a variable for each key of an object. Keys of binaryData are no
// text, and define none.
func (b *builder) addFrom(ctx context.Context, i int, from *corev1.EnvFromSource) {
	field := fmt.Sprintf("envFrom[%d]", i)
	switch {
	case from.ConfigMapRef != nil:
		ref := from.ConfigMapRef
		cm, err := b.configMap(ctx, ref.Name)
		if err != nil {
			b.missing(field, "ConfigMap", ref.Name, "", ref.Optional, err)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			b.add(field, from.Prefix+key, cm.Data[key])
		}
	case from.SecretRef != nil:
		ref := from.SecretRef
		secret, err := b.secret(ctx, ref.Name)
		if err != nil {
			b.missing(field, "Secret", ref.Name, "", ref.Optional, err)
			return
		}
		for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
			b.add(field, from.Prefix+key, string(secret.Data[key]))
		}
	default:
		b.fail(&SourceError{Field: field, Err: errors.New("a source that is not known here")})
	}
}

// missing notes that an object or a key can't be had, unless it is absent and
// optional.
func (b *builder) missing(field, kind, name, key string, optional *bool, err error) {
	if errors.Is(err, ErrMissing) && optional != nil && *optional {
		return
	}
	b.lacks(kind, name)
	b.fail(&SourceError{Field: field, Kind: kind, Namespace: b.p.pod.Namespace, Name: name, Key: key, Wait: true, Err: apierr.Permission(err, "podenv.yaml")})
}

// addVar defines one variable of the container's env.
func (b *builder) addVar(ctx context.Context, v *corev1.EnvVar) {
	field := "env " + v.Name
	from := v.ValueFrom
	switch {
	case from == nil || v.Value != "":
		late := false
		value := Expand(v.Value, func(name string) (string, bool) {
			late = late || b.late[name]
			return b.lookup(name)
		})
		if late {
			b.setLate(v.Name)
			return
		}
		b.set(field, v.Name, value)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		value, err := b.configKey(ctx, ref.Name, ref.Key)
		if err != nil {
			b.missing(field, "ConfigMap", ref.Name, ref.Key, ref.Optional, err)
			return
		}
		b.add(field, v.Name, value)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		value, err := b.secretKey(ctx, ref.Name, ref.Key)
		if err != nil {
			b.missing(field, "Secret", ref.Name, ref.Key, ref.Optional, err)
			return
		}
		b.add(field, v.Name, value)
	case from.FieldRef != nil:
		b.addField(field, v.Name, from.FieldRef)
	case from.ResourceFieldRef != nil:
		value, err := b.p.resourceField(from.ResourceFieldRef, b.c)
		if err != nil {
			b.fail(&SourceError{Field: field, Err: err})
			return
		}
		b.add(field, v.Name, value)
	case from.FileKeyRef != nil:
		b.addFile(ctx, field, v.Name, from.FileKeyRef)
	default:
		b.fail(&SourceError{Field: field, Err: errors.New("a source that is not known here")})
	}
}

// addField defines a variable that holds a field of the pod.
func (b *builder) addField(field, name string, ref *corev1.ObjectFieldSelector) {
	var addresses []string
	list := false
	switch ref.FieldPath {
	case "status.podIP":
		addresses = b.addresses.PodIPs
	case "status.podIPs":
		addresses, list = b.addresses.PodIPs, true
	case "status.hostIP":
		addresses = b.addresses.HostIPs
	case "status.hostIPs":
		addresses, list = b.addresses.HostIPs, true
	default:
		value, err := fieldValue(b.p.pod, ref)
		if err != nil {
			b.fail(&SourceError{Field: field, Err: err})
			return
		}
		b.add(field, name, value)
		return
	}
	switch {
	case len(addresses) == 0:
		b.setLate(name)
	case list:
		b.add(field, name, strings.Join(addresses, ","))
	default:
		b.add(field, name, addresses[0])
	}
}

// addFile defines a variable that a file in a volume holds.
func (b *builder) addFile(ctx context.Context, field, name string, ref *corev1.FileKeySelector) {
	read := b.p.resolver.cfg.ReadFile
	switch {
	case read == nil:
		b.fail(&SourceError{Field: field, Err: errors.New("variables from files are not supported on this node")})
		return
	case !filepath.IsLocal(ref.Path):
		b.fail(&SourceError{Field: field, Err: fmt.Errorf("the path %q leads out of the volume", ref.Path)})
		return
	}
	file := b.file(ctx, ref)
	value, ok := file.values[ref.Key]
	err := file.err
	switch {
	case ok:
		err = nil // what follows its definition is of no account
	case err == nil:
		err = ErrMissing
	}
	switch {
	case err == nil:
		b.add(field, name, value)
	case errors.Is(err, ErrMissing) && ref.Optional != nil && *ref.Optional:
	default:
		b.fail(&SourceError{Field: field, Kind: "file", Name: ref.VolumeName + "/" + ref.Path, Key: ref.Key, Wait: true, Err: err})
	}
}

// file returns the file that a variable is read from. It is read once for all variables of the
// container, because the pod's own init container may have made it large.
func (b *builder) file(ctx context.Context, ref *corev1.FileKeySelector) *sourceFile {
	if b.files == nil {
		b.files = map[filePath]*sourceFile{}
		for i := range b.c.Env {
			if from := b.c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
				path := filePath{from.FileKeyRef.VolumeName, from.FileKeyRef.Path}
				if b.files[path] == nil {
					b.files[path] = &sourceFile{wanted: map[string]bool{}}
				}
				b.files[path].wanted[from.FileKeyRef.Key] = true
			}
		}
	}
	f := b.files[filePath{ref.VolumeName, ref.Path}]
	if f.read {
		return f
	}
	f.read = true
	if b.copied == nil {
		b.copied = b.p.pod.DeepCopy() // once, because the pod may name thousands of files
	}
	data, err := b.p.resolver.cfg.ReadFile(ctx, b.copied, ref.VolumeName, ref.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.err = ErrMissing
	case err != nil:
		f.err = err
	case len(data) > maxEnvFile:
		f.err = fmt.Errorf("the file has more than %d bytes", maxEnvFile)
	case b.budget.spend(len(data)):
		f.envFile = parseEnvFile(string(data), f.wanted)
	}
	return f
}
