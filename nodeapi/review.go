// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// The times for which answers of the API server are reused; the kubelet has the
// same ones.
const (
	tokenTTL = 2 * time.Minute
	allowTTL = 5 * time.Minute
	denyTTL  = 30 * time.Second
)

const (
	// maxReviews is the number of TokenReviews at a time, and of SubjectAccessReviews.
	// Anyone who reaches the node can cause a TokenReview.
	maxReviews = 10
	// maxAnswers is the number of answers of each kind that are kept.
	maxAnswers = 4096
)

// reviewBackoff bounds the retries of one review; CallTimeout bounds them too.
var reviewBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}

// reviews asks the API server questions and keeps the answers for a while. Package
// k8s.io/apiserver has webhooks for that, which link cel-go, gRPC and a trace exporter.
//
// Invariants: at most maxReviews requests are open, half of them from one address, and at most maxAnswers answers are
// kept. An error is not kept. A question is open while it has askers and no answer.
type reviews[A any] struct {
	timeout time.Duration // of a request, and of the wait for a place
	places  *places
	answers *cache.LRUExpireCache

	mu   sync.Mutex
	open map[questionKey]*question[A]
}

// A questionKey is the hash of a question, so that the memory of an answer does not
// depend on its question and holds no token.
type questionKey [sha256.Size]byte

// A question is a request to the API server that one or more callers wait for.
type question[A any] struct {
	cancel context.CancelFunc
	askers int           // guarded by reviews.mu
	done   chan struct{} // closed when answer and err are set
	answer A
	err    error
}

// An askFunc sends a request and returns the answer and the time to keep it, if any.
type askFunc[A any] func(context.Context) (A, time.Duration, error)

func newReviews[A any](timeout time.Duration) *reviews[A] {
	return &reviews[A]{
		timeout: timeout, places: newPlaces(maxReviews), answers: cache.NewLRUExpireCache(maxAnswers),
		open: map[questionKey]*question[A]{},
	}
}

// get returns the answer to the question that text identifies. Concurrent callers with
// the same question share one request. It is canceled when all of them are gone.
func (r *reviews[A]) get(ctx context.Context, text []byte, ask askFunc[A]) (A, error) {
	key := questionKey(sha256.Sum256(text))
	r.mu.Lock()
	if kept, ok := r.answers.Get(key); ok {
		r.mu.Unlock()
		return kept.(A), nil
	}
	q := r.open[key]
	if q == nil {
		q = &question[A]{done: make(chan struct{})}
		var asking context.Context
		asking, q.cancel = context.WithCancel(context.WithoutCancel(ctx))
		r.open[key] = q
		go r.resolve(asking, key, q, ask)
	}
	q.askers++
	r.mu.Unlock()
	defer r.leave(key, q)
	select {
	case <-q.done:
		return q.answer, q.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

// leave removes an asker of q. The last one cancels the request and waits for its end.
func (r *reviews[A]) leave(key questionKey, q *question[A]) {
	r.mu.Lock()
	q.askers--
	last := q.askers == 0
	if last {
		r.close(key, q)
	}
	r.mu.Unlock()
	if last {
		q.cancel()
		<-q.done
	}
}

// close removes q, so that the next caller asks again. r.mu must be held.
func (r *reviews[A]) close(key questionKey, q *question[A]) {
	if r.open[key] == q {
		delete(r.open, key)
	}
}

// resolve sets the answer of q, or its error.
func (r *reviews[A]) resolve(ctx context.Context, key questionKey, q *question[A], ask askFunc[A]) {
	var ttl time.Duration
	q.answer, ttl, q.err = r.retry(ctx, ask)
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.err == nil && ttl > 0 {
		r.answers.Add(key, q.answer, ttl)
	}
	r.close(key, q)
	close(q.done)
}

// errAnswer is the error of an empty answer: the API server returns the question with its answer, so it
// is that of a proxy.
var errAnswer = errors.New("the answer is empty, and not one of the API server")

var errBusy = errors.New("too many other reviews are open")

// retry waits for a place and then asks, up to four times if the error is a passing one.
func (r *reviews[A]) retry(ctx context.Context, ask askFunc[A]) (answer A, ttl time.Duration, err error) {
	waiting, cancel := context.WithTimeoutCause(ctx, r.timeout, errBusy)
	defer cancel()
	from := originOf(ctx)
	if err := r.places.take(waiting, from); err != nil {
		return answer, 0, err
	}
	defer r.places.leave(from)
	asking, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	ended := wait.ExponentialBackoffWithContext(asking, reviewBackoff, func(ctx context.Context) (bool, error) {
		err = guard(func() (err error) { // of the client, which the program may have wrapped
			answer, ttl, err = ask(ctx)
			return err
		})
		return !passing(err), nil
	})
	if err == nil {
		err = ended // not nil if there was no time to ask
	}
	return answer, ttl, err
}

// passing reports whether a request that failed with err may succeed when it is repeated.
func passing(err error) bool {
	_, delayed := apierrors.SuggestsClientDelay(err)
	return delayed || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// newTokens returns the authenticator of bearer tokens. Its errors are uncheckedErrors
// if the API server did not answer, because they say nothing about the token.
func newTokens(cfg *Config) authenticator.Token {
	client := cfg.Client.AuthenticationV1().TokenReviews()
	tokens := newReviews[authenticationv1.TokenReviewStatus](cfg.CallTimeout)
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		status, err := tokens.get(ctx, []byte(token), func(ctx context.Context) (status authenticationv1.TokenReviewStatus, ttl time.Duration, err error) {
			review, err := client.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err != nil {
				return status, 0, err
			}
			if s := &review.Status; !s.Authenticated && s.Error == "" && review.Spec.Token != token {
				return status, 0, errAnswer
			}
			if review.Status.Authenticated || review.Status.Error == "" {
				ttl = tokenTTL
			}
			return review.Status, ttl, nil
		})
		switch {
		case err != nil:
			return nil, false, &uncheckedError{bearerToken, withManifest(err)}
		case !status.Authenticated && status.Error != "":
			return nil, false, errors.New(status.Error)
		case !status.Authenticated:
			return nil, false, nil
		}
		extra := map[string][]string{}
		for key, values := range status.User.Extra {
			extra[key] = values
		}
		return &authenticator.Response{User: &user.DefaultInfo{
			Name: status.User.Username, UID: status.User.UID, Groups: status.User.Groups, Extra: extra,
		}}, true, nil
	})
}

// newAuthorizer returns the authorizer that asks the API server. No user and no group
// has a permission without being asked for.
func newAuthorizer(cfg *Config) authorizer.Authorizer {
	client := cfg.Client.AuthorizationV1().SubjectAccessReviews()
	permissions := newReviews[bool](cfg.CallTimeout)
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		u := a.GetUser()
		extra := map[string]authorizationv1.ExtraValue{}
		for key, values := range u.GetExtra() {
			extra[key] = values
		}
		spec := authorizationv1.SubjectAccessReviewSpec{
			User: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: a.GetVerb(), Version: a.GetAPIVersion(), Resource: a.GetResource(), Subresource: a.GetSubresource(), Name: a.GetName(),
			},
		}
		text, err := json.Marshal(spec)
		if err != nil {
			return authorizer.DecisionDeny, "", fmt.Errorf("encode a question: %w", err)
		}
		allowed, err := permissions.get(ctx, text, func(ctx context.Context) (bool, time.Duration, error) {
			review, err := client.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
			if err != nil {
				return false, 0, err
			}
			if s := &review.Status; !s.Allowed && !s.Denied && s.Reason == "" && s.EvaluationError == "" && review.Spec.User != spec.User {
				return false, 0, errAnswer
			}
			if review.Status.Allowed && !review.Status.Denied {
				return true, allowTTL, nil
			}
			return false, denyTTL, nil
		})
		if err != nil || !allowed {
			return authorizer.DecisionDeny, "", withManifest(err)
		}
		return authorizer.DecisionAllow, "", nil
	})
}
