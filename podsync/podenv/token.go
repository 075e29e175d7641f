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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/internal/apierr"
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
	account := accountOf(pod)
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
	key := objectKey{kindToken, pod.Namespace, fmt.Sprintf("%s/%s/%d", account, s.Audience, seconds)}
	last, known := f.p.memory.recall(key)
	if known && f.p.refresh {
		if token := last.object.(*keptToken); !token.isDue(time.Now()) {
			f.addToken(s.Path, File{Data: []byte(token.Token), Expires: token.Expires, Renew: token.Renew})
			return
		}
	}
	var answer *authenticationv1.TokenRequest
	err := error(nil)
	if !known || !f.p.away() {
		call, cancel := context.WithTimeout(ctx, f.p.resolver.cfg.CallTimeout)
		answer, err = f.p.resolver.cfg.ServiceAccounts.ServiceAccounts(pod.Namespace).CreateToken(call, account, request, metav1.CreateOptions{})
		cancel()
		if err == nil && answer.Status.Token == "" {
			err = apierr.ErrAnswer
		}
	}
	if known && (answer == nil && err == nil || unreachable(ctx, err)) {
		f.p.setAway()
		// It may have expired. The API server that rejects it can issue the next one.
		token := last.object.(*keptToken)
		f.addToken(s.Path, File{Data: []byte(token.Token), Expires: token.Expires, Renew: time.Now()})
		return
	}
	if err != nil {
		if apierr.IsMissing(err, "serviceaccounts", account) {
			err = fmt.Errorf("%w: %w", ErrMissing, err)
		}
		f.missing("ServiceAccount", account, "", nil, err)
		return
	}
	expires := answer.Status.ExpirationTimestamp.Time.Truncate(time.Second)
	made, asked := time.Now().Round(0), time.Duration(seconds)*time.Second
	renew := renewal(expires, made, asked)
	f.p.memory.keep(key, &held{&keptToken{answer.Status.Token, expires, renew, made, asked}})
	f.addToken(s.Path, File{Data: []byte(answer.Status.Token), Expires: expires, Renew: renew})
}

// maxTokenAge is the age at which the API promises a new token, whatever the life of
// the token; see corev1.ServiceAccountTokenProjection.
const maxTokenAge = 24 * time.Hour

// renewal returns when a token is made again: after 80 % of its life, and after
// maxTokenAge at the latest. Its life is no longer than the pod asked for, even if this
// machine's clock is behind that of the API server, which chose expires.
func renewal(expires, now time.Time, asked time.Duration) time.Time {
	return now.Add(min(min(expires.Sub(now), asked)*8/10, maxTokenAge))
}

// accountOf returns the name of the pod's service account.
func accountOf(pod *corev1.Pod) string {
	if name := pod.Spec.ServiceAccountName; name != "" {
		return name
	}
	return "default"
}
