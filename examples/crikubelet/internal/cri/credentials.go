// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A login is an entry of a Docker configuration file.
type login struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Auth     string `json:"auth"` // base64 of user:password
}

// credentials returns the credentials in the pull secrets of a pod that are for the
// registry of an image, those for the longest path first. A secret that is missing is
// no error: the image may be public.
func (r *Runtime) credentials(ctx context.Context, pod *corev1.Pod, image string) ([]*runtimeapi.AuthConfig, error) {
	found := map[string][]*runtimeapi.AuthConfig{}
	for _, ref := range pod.Spec.ImagePullSecrets {
		secret, err := r.cfg.Secrets.Secrets(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("pull secret %s: %w", ref.Name, err)
		}
		logins, err := logins(secret)
		if err != nil {
			return nil, fmt.Errorf("pull secret %s: %w", ref.Name, err)
		}
		for registry, l := range logins {
			if !covers(registry, image) {
				continue
			}
			auth, err := l.config()
			if err != nil {
				return nil, fmt.Errorf("pull secret %s: %s: %w", ref.Name, registry, err)
			}
			found[registry] = append(found[registry], auth)
		}
	}
	var registries []string
	for registry := range found {
		registries = append(registries, registry)
	}
	slices.SortFunc(registries, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var all []*runtimeapi.AuthConfig
	for _, registry := range registries {
		all = append(all, found[registry]...)
	}
	return all, nil
}

// logins returns the entries of a pull secret by registry.
func logins(secret *corev1.Secret) (map[string]login, error) {
	var file struct {
		Auths map[string]login `json:"auths"`
	}
	switch secret.Type {
	case corev1.SecretTypeDockerConfigJson:
		err := json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &file)
		return file.Auths, err
	case corev1.SecretTypeDockercfg:
		err := json.Unmarshal(secret.Data[corev1.DockerConfigKey], &file.Auths)
		return file.Auths, err
	}
	return nil, fmt.Errorf("a secret of type %s is no pull secret", secret.Type)
}

func (l login) config() (*runtimeapi.AuthConfig, error) {
	if l.Auth == "" {
		return &runtimeapi.AuthConfig{Username: l.Username, Password: l.Password}, nil
	}
	text, err := base64.StdEncoding.DecodeString(l.Auth)
	if err != nil {
		return nil, err
	}
	user, password, ok := strings.Cut(string(text), ":")
	if !ok {
		return nil, fmt.Errorf("auth is not of the form user:password")
	}
	return &runtimeapi.AuthConfig{Username: user, Password: strings.TrimRight(password, "\x00")}, nil
}

// hub is the registry of images whose name has no host.
const hub = "docker.io"

// covers reports whether the credentials for a registry, as a Docker configuration
// file names it, are for an image: same host, in which each * stands for one part of
// the name, same port, and a prefix of the path.
func covers(registry, image string) bool {
	_, rest, ok := strings.Cut(registry, "://")
	if !ok {
		rest = registry
	}
	rest = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(rest, "/"), "/v1"), "/v2")
	host, prefix, _ := strings.Cut(rest, "/")
	if host == "index.docker.io" {
		host = hub
	}
	name := repository(image)
	first, repo, ok := strings.Cut(name, "/")
	if !ok || !strings.ContainsAny(first, ".:") && first != "localhost" {
		first, repo = hub, name
	}
	patterns, parts := strings.Split(host, "."), strings.Split(first, ".")
	if len(patterns) != len(parts) {
		return false
	}
	for i := range parts {
		if ok, err := path.Match(patterns[i], parts[i]); !ok || err != nil {
			return false
		}
	}
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}
