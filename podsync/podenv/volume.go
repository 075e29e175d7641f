// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/internal/apierr"
)

// File is a file of a volume.
type File struct {
	// Data is the content.
	Data []byte
	// Mode are the permission bits that the pod asks for, 0644 by default. Those of a
	// token or a certificate are 0600 if it has a User or if the pod has an fsGroup, which
	// must then be able to read it, as all files of the volume.
	Mode int32
	// User is the owner of a token or a certificate: the user that all containers and
	// init containers run as, by the spec. nil: root, and for all else.
	User *int64
	// Expires is when the content is no longer valid, for a token or a certificate.
	// Zero for all else.
	Expires time.Time
	// Renew is when to call [Pod.Volume] again for a new token or certificate: after
	// 80 % of a token's life by the clock of this machine, or after a day if that is
	// sooner, as the kubelet does, and at the time that a certificate's signer asks for.
	// Zero for all else.
	Renew time.Time
}

// defaultMode is the API's default for the volumes here.
const defaultMode = 0o644

// IsData reports whether [Pod.Volume] has the files of v: it is a ConfigMap, a
// Secret, a downward API volume or a projection of such.
func IsData(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// Volume returns the files of the pod's volume of this name, by their
// slash-separated path in it. Every path is local. The files belong to the caller.
// Errors are as with [Pod.Container]. A volume that names owners of its files (user, defaultUser) is
// an error. Each call asks for new tokens and certificates,
// unless the Pod is one of [Resolver.Refresh]; nothing else is read twice. A call that needs a certificate waits for its signer as
// long as Config.CallTimeout, and the next call waits for the same request. Files that have
// more than 32 MiB together, or more than the volume's share of 128 MiB for all volumes of the
// pod, are an error. A file counts 4096 bytes more than its path and content.
func (p *Pod) Volume(ctx context.Context, name string) (map[string]File, error) {
	f := filler{turn: turn{p: p}, field: "volume " + name, volume: name, files: map[string]File{}, mode: defaultMode, budget: budget{limit: volumeLimit(&p.pod.Spec)}}
	defer f.end()
	at := -1
	for i := range p.pod.Spec.Volumes {
		if p.pod.Spec.Volumes[i].Name == name {
			at = i
		}
	}
	if at < 0 {
		f.fail(&SourceError{Err: errors.New("the pod has no such volume")})
		return nil, errors.Join(f.errs...)
	}
	switch v := &p.pod.Spec.Volumes[at]; {
	case v.ConfigMap != nil:
		f.defaults(v.ConfigMap.DefaultMode, v.ConfigMap.DefaultUser)
		f.configMap(ctx, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Secret != nil:
		f.defaults(v.Secret.DefaultMode, v.Secret.DefaultUser)
		f.secret(ctx, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
	case v.DownwardAPI != nil:
		f.defaults(v.DownwardAPI.DefaultMode, v.DownwardAPI.DefaultUser)
		f.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		f.defaults(v.Projected.DefaultMode, v.Projected.DefaultUser)
		for i := 0; i < len(v.Projected.Sources) && !f.budget.exceeded; i++ {
			f.project(ctx, i, &v.Projected.Sources[i])
		}
	default:
		f.fail(&SourceError{Err: errors.New("not a volume of data from the API")})
	}
	if f.budget.exceeded {
		return nil, f.budget.err("", f.field, "its files have")
	}
	if len(f.errs) > 0 {
		return nil, errors.Join(f.errs...)
	}
	return f.files, nil
}

// filler collects the files of one volume.
type filler struct {
	turn
	field  string
	volume string
	files  map[string]File
	mode   int32
	budget budget
	errs   []error
}

func (f *filler) defaults(mode *int32, user *int64) {
	if mode != nil {
		f.mode = *mode
	}
	f.owner(user)
}

// owner refuses an owner that the pod names for a file.
func (f *filler) owner(user *int64) {
	if user != nil {
		f.fail(&SourceError{Err: fmt.Errorf("user %d for a file: owners are not supported here", *user)})
	}
}

func (f *filler) fail(err *SourceError) {
	err.Field = f.field
	f.errs = append(f.errs, err)
}

func (f *filler) missing(kind, name, key string, optional *bool, err error) {
	if errors.Is(err, ErrMissing) && optional != nil && *optional {
		return
	}
	f.lacks(kind, name)
	f.fail(&SourceError{Kind: kind, Namespace: f.p.pod.Namespace, Name: name, Key: key, Wait: true, Err: apierr.Permission(err, "podenv.yaml")})
}

// add writes a file; a later source of a projection is over an earlier one.
func (f *filler) add(path string, data []byte, mode *int32) {
	f.addFile(path, File{Data: data}, mode)
}

// addFile is add for content that expires.
func (f *filler) addFile(path string, file File, mode *int32) {
	if !filepath.IsLocal(path) {
		f.fail(&SourceError{Err: fmt.Errorf("the path %q leads out of the volume", path)})
		return
	}
	if !f.budget.spend(len(path) + len(file.Data) + fileOverhead) {
		return
	}
	file.Mode = f.mode
	if mode != nil {
		file.Mode = *mode
	}
	f.files[path] = file
}

// addToken is addFile for a token or a certificate.
func (f *filler) addToken(path string, file File) {
	var mode *int32
	file.User = userOf(f.p.pod)
	if s := f.p.pod.Spec.SecurityContext; file.User != nil || s != nil && s.FSGroup != nil {
		mode = new(int32(0o600))
	}
	f.addFile(path, file, mode)
}

// userOf returns the user of all containers and init containers of a pod, or nil if they
// have several or one of them has that of its image.
func userOf(pod *corev1.Pod) (user *int64) {
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			var own *int64
			if s := pod.Spec.SecurityContext; s != nil {
				own = s.RunAsUser
			}
			if s := list[i].SecurityContext; s != nil && s.RunAsUser != nil {
				own = s.RunAsUser
			}
			if own == nil || user != nil && *user != *own {
				return nil
			}
			user = own
		}
	}
	return user
}

// project adds the files of a source, which has this index in its volume.
func (f *filler) project(ctx context.Context, source int, s *corev1.VolumeProjection) {
	switch {
	case s.ConfigMap != nil:
		f.configMap(ctx, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
	case s.Secret != nil:
		f.secret(ctx, s.Secret.Name, s.Secret.Items, s.Secret.Optional)
	case s.DownwardAPI != nil:
		f.downward(s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		f.owner(s.ServiceAccountToken.User)
		f.token(ctx, s.ServiceAccountToken)
	case s.ClusterTrustBundle != nil:
		f.owner(s.ClusterTrustBundle.User)
		f.trust(ctx, s.ClusterTrustBundle)
	case s.PodCertificate != nil:
		f.owner(s.PodCertificate.User)
		f.certificate(ctx, source, s.PodCertificate)
	default:
		f.fail(&SourceError{Err: errors.New("a projection that is not supported here")})
	}
}

func (f *filler) configMap(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool) {
	cm, err := f.turn.configMap(ctx, name)
	if err != nil {
		f.missing("ConfigMap", name, "", optional, err)
		return
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, text := range cm.Data {
		data[key] = []byte(text)
	}
	maps.Copy(data, cm.BinaryData)
	f.keys("ConfigMap", name, items, optional, data)
}

func (f *filler) secret(ctx context.Context, name string, items []corev1.KeyToPath, optional *bool) {
	secret, err := f.turn.secret(ctx, name)
	if err != nil {
		f.missing("Secret", name, "", optional, err)
		return
	}
	f.keys("Secret", name, items, optional, secret.Data)
}

// keys adds a file for each item, or for each key of the object if there are no
// items.
func (f *filler) keys(kind, name string, items []corev1.KeyToPath, optional *bool, data map[string][]byte) {
	if len(items) == 0 {
		for key, value := range data {
			f.add(key, bytes.Clone(value), nil)
		}
		return
	}
	for i := 0; i < len(items) && !f.budget.exceeded; i++ {
		value, ok := data[items[i].Key]
		if !ok {
			f.missing(kind, name, items[i].Key, optional, ErrMissing)
			continue
		}
		f.owner(items[i].User)
		f.add(items[i].Path, bytes.Clone(value), items[i].Mode)
	}
}

func (f *filler) downward(items []corev1.DownwardAPIVolumeFile) {
	for i := 0; i < len(items) && !f.budget.exceeded; i++ {
		var value string
		var err error
		switch item := &items[i]; {
		case item.FieldRef != nil:
			value, err = fieldValue(f.p.pod, item.FieldRef)
		case item.ResourceFieldRef != nil:
			value, err = f.p.resourceField(item.ResourceFieldRef, nil)
		default:
			err = errors.New("a source that is not known here")
		}
		if err != nil {
			f.fail(&SourceError{Err: fmt.Errorf("%s: %w", items[i].Path, err)})
			continue
		}
		f.owner(items[i].User)
		f.add(items[i].Path, []byte(value), items[i].Mode)
	}
}
