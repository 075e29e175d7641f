// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tokenSeconds is the API's default for how long a projected token is valid.
const tokenSeconds = 3600

// token adds a token of the pod's service account. It is bound to the pod: it
// ceases to be valid when the pod is gone.
func (f *filler) token(ctx context.Context, s *corev1.ServiceAccountTokenProjection) {
	if f.p.resolver.cfg.ServiceAccounts == nil {
		f.fail(&SourceError{Err: errors.New("tokens are not supported on this node")})
		return
	}
	pod := f.p.pod
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	seconds := int64(tokenSeconds)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if s.Audience != "" {
		request.Spec.Audiences = []string{s.Audience}
	}
	ctx, cancel := context.WithTimeout(ctx, f.p.resolver.cfg.CallTimeout)
	defer cancel()
	answer, err := f.p.resolver.cfg.ServiceAccounts.ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("%w: %w", ErrMissing, err)
		}
		f.missing("ServiceAccount", account, "", nil, err)
		return
	}
	f.add(s.Path, []byte(answer.Status.Token), nil, answer.Status.ExpirationTimestamp.Time.Truncate(time.Second))
}
