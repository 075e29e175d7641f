// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// askedServer is an API server in memory. It answers reviews by functions and counts them.
// By default, each token is of the user of its name, who may do everything.
type askedServer struct {
	token  func(context.Context, *authenticationv1.TokenReview) error
	access func(context.Context, *authorizationv1.SubjectAccessReview) error

	mu               sync.Mutex
	tokens, accesses int
}

func (a *askedServer) RoundTrip(r *http.Request) (*http.Response, error) {
	var (
		answer any
		err    error
	)
	body := json.NewDecoder(r.Body)
	switch r.URL.Path {
	case "/apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		if err := body.Decode(&review); err != nil {
			return nil, err
		}
		review.Status.Authenticated, review.Status.User.Username = true, review.Spec.Token
		a.count(&a.tokens)
		if a.token != nil {
			err = a.token(r.Context(), &review)
		}
		answer = review
	case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		if err := body.Decode(&review); err != nil {
			return nil, err
		}
		review.Status.Allowed = true
		a.count(&a.accesses)
		if a.access != nil {
			err = a.access(r.Context(), &review)
		}
		answer = review
	default:
		return nil, fmt.Errorf("a request to %s", r.URL.Path)
	}
	code := http.StatusCreated
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		answer, code = status.Status(), int(status.Status().Code)
	} else if err != nil {
		return nil, err
	}
	data, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), Request: r,
	}, err
}

func (a *askedServer) count(n *int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*n++
}

// asked returns the numbers of reviews.
func (a *askedServer) asked() (tokens, accesses int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokens, a.accesses
}

// server returns a Server that asks a, and the errors that it reports.
func (a *askedServer) server(t *testing.T) (*Server, *[]error) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: a, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu       sync.Mutex
		reported []error
	)
	s, err := New(Config{NodeName: nodeName, Backend: everyBackend(), Client: client, Pods: (&rig{}).all(), ErrorHandler: func(_ context.Context, err error, msg string) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, fmt.Errorf("%s: %w", msg, err))
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s, &reported
}

// send sends a request with a header Authorization and returns the status.
func send(ctx context.Context, s *Server, path, authorization string) int {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

func refuseToken(message string) func(context.Context, *authenticationv1.TokenReview) error {
	return func(_ context.Context, review *authenticationv1.TokenReview) error {
		review.Status = authenticationv1.TokenReviewStatus{Error: message}
		return nil
	}
}

var errInjected = apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("injected"))

// TestAnAnswerIsReusedForItsTime sends a request each second. A permission that is
// revoked works for five minutes at most, one that is granted is noticed after 30 s, and
// an error is no answer.
func TestAnAnswerIsReusedForItsTime(t *testing.T) {
	status := func(status authorizationv1.SubjectAccessReviewStatus) func(context.Context, *authorizationv1.SubjectAccessReview) error {
		return func(_ context.Context, review *authorizationv1.SubjectAccessReview) error {
			review.Status = status
			return nil
		}
	}
	for name, c := range map[string]struct {
		server        *askedServer
		code          int
		token, access time.Duration // between the first two reviews; 0 if there are none
	}{
		"allowed":                     {&askedServer{}, 200, 2*time.Minute + time.Second, 5*time.Minute + time.Second},
		"a token that is unknown":     {&askedServer{token: refuseToken("")}, 401, 2*time.Minute + time.Second, 0},
		"a token that is refused":     {&askedServer{token: refuseToken("expired")}, 401, time.Second, 0},
		"a token that is not checked": {&askedServer{token: func(context.Context, *authenticationv1.TokenReview) error { return errInjected }}, 503, time.Second, 0},
		"no permission":               {&askedServer{access: status(authorizationv1.SubjectAccessReviewStatus{})}, 403, 2*time.Minute + time.Second, 31 * time.Second},
		"allowed and denied":          {&askedServer{access: status(authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true})}, 403, 2*time.Minute + time.Second, 31 * time.Second},
		"a permission that is not checked": {&askedServer{access: func(context.Context, *authorizationv1.SubjectAccessReview) error {
			return errInjected
		}}, 503, 2*time.Minute + time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := c.server.server(t)
				var tokens, accesses []time.Duration // when they were reviewed
				for began := time.Now(); time.Since(began) < 6*time.Minute; time.Sleep(time.Second) {
					moreTokens, moreAccesses := c.server.asked()
					if code := send(t.Context(), s, "/metrics/resource", "Bearer someone"); code != c.code {
						t.Fatalf("%d, want %d", code, c.code)
					}
					tokensNow, accessesNow := c.server.asked()
					if tokensNow > moreTokens {
						tokens = append(tokens, time.Since(began))
					}
					if accessesNow > moreAccesses {
						accesses = append(accesses, time.Since(began))
					}
				}
				for _, of := range []struct {
					what string
					at   []time.Duration
					want time.Duration
				}{{"tokens", tokens, c.token}, {"permissions", accesses, c.access}} {
					if len(of.at) < 2 && of.want > 0 || len(of.at) > 0 && of.want == 0 || len(of.at) > 1 && of.at[1] != of.want {
						t.Errorf("%s are reviewed at %v, want the second time at %v", of.what, of.at, of.want)
					}
				}
			})
		})
	}
}

// TestAnEmptyAnswerIsNoAnswer: one of a proxy refused a token for two minutes, and a permission for half
// a minute.
func TestAnEmptyAnswerIsNoAnswer(t *testing.T) {
	empty := true
	server := askedServer{
		token: func(_ context.Context, review *authenticationv1.TokenReview) error {
			if empty {
				*review = authenticationv1.TokenReview{}
			}
			return nil
		},
	}
	s, reported := server.server(t)
	if code := send(t.Context(), s, "/pods", "Bearer someone"); code != 503 || len(*reported) != 1 || !errors.Is((*reported)[0], errAnswer) {
		t.Errorf("an empty answer about a token: %d, reported %v", code, *reported)
	}
	empty = false
	server.access = func(_ context.Context, review *authorizationv1.SubjectAccessReview) error {
		*review = authorizationv1.SubjectAccessReview{}
		return nil
	}
	if code := send(t.Context(), s, "/pods", "Bearer someone"); code != 503 || len(*reported) != 2 || !errors.Is((*reported)[1], errAnswer) {
		t.Errorf("an empty answer about a permission: %d, reported %v", code, *reported)
	}
	server.access = nil
	if code := send(t.Context(), s, "/pods", "Bearer someone"); code != 200 {
		t.Errorf("%d afterwards", code)
	}
}

// TestAMissingPermissionNamesItsManifest: the administrator of the node reads which file grants
// it, and the caller reads nothing of that.
func TestAMissingPermissionNamesItsManifest(t *testing.T) {
	const manifest = "examples/rbac/nodeapi.yaml"
	for _, c := range []struct {
		server         *askedServer
		answer, report string
	}{
		{&askedServer{token: func(context.Context, *authenticationv1.TokenReview) error { return errInjected }}, "the node could not check the bearer token", "Bearer tokens could not be checked: "},
		{&askedServer{access: func(context.Context, *authorizationv1.SubjectAccessReview) error { return errInjected }}, "the node could not check the permissions", "Permissions could not be checked: "},
	} {
		s, reported := c.server.server(t)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics/resource", nil)
		r.Header.Set("Authorization", "Bearer someone")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Body.String(), c.answer) || strings.Contains(w.Body.String(), "examples/rbac") {
			t.Errorf("%d %s, want %s", w.Code, w.Body, c.answer)
		}
		if err := errors.Join(*reported...); err == nil || !strings.HasPrefix(err.Error(), c.report) || !strings.Contains(err.Error(), manifest) {
			t.Errorf("reported %v, want %s", err, c.report)
		}
	}
	forbidden := roundTrip(func(r *http.Request) (*http.Response, error) {
		data, err := json.Marshal(apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "extension-apiserver-authentication", nil).ErrStatus)
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(data)), Request: r,
		}, err
	})
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://api", Transport: forbidden})
	if _, err := clientCA(&Config{Client: client, CallTimeout: time.Second})(t.Context()); err == nil || !strings.Contains(err.Error(), manifest) {
		t.Errorf("the CA: %v", err)
	}
	if _, err := os.Stat("../" + manifest); err != nil {
		t.Error(err)
	}
}

// roundTrip is a function as a http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestQuestionsHaveTheWholeUser: what a token says of its user is what permissions are
// asked for. No group is special, not even the one that an API server obeys.
func TestQuestionsHaveTheWholeUser(t *testing.T) {
	var got []authorizationv1.SubjectAccessReviewSpec
	server := askedServer{
		token: func(_ context.Context, review *authenticationv1.TokenReview) error {
			if len(review.Spec.Audiences) > 0 {
				t.Errorf("audiences %v", review.Spec.Audiences)
			}
			review.Status.User = authenticationv1.UserInfo{
				Username: "root", UID: "7", Groups: []string{"system:masters"}, Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}},
			}
			return nil
		},
		access: func(_ context.Context, review *authorizationv1.SubjectAccessReview) error {
			got = append(got, review.Spec)
			review.Status = authorizationv1.SubjectAccessReviewStatus{Reason: "no"}
			return nil
		},
	}
	s, _ := server.server(t)
	if code := send(t.Context(), s, "/pods", "Bearer x"); code != 403 {
		t.Errorf("%d, want 403", code)
	}
	question := func(subresource string) authorizationv1.SubjectAccessReviewSpec {
		return authorizationv1.SubjectAccessReviewSpec{
			User: "root", UID: "7", Groups: []string{"system:masters", "system:authenticated"}, Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a", "b"}},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: subresource, Name: nodeName},
		}
	}
	if want := []authorizationv1.SubjectAccessReviewSpec{question("pods"), question("proxy")}; !reflect.DeepEqual(got, want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
}

// TestUsersDoNotShareAnswers: an answer is for one token, and for one user with all
// groups and one permission.
func TestUsersDoNotShareAnswers(t *testing.T) {
	server := askedServer{
		token: func(_ context.Context, review *authenticationv1.TokenReview) error {
			name, group, _ := strings.Cut(review.Spec.Token, ".")
			review.Status.User = authenticationv1.UserInfo{Username: name, Groups: []string{group}}
			return nil
		},
		access: func(_ context.Context, review *authorizationv1.SubjectAccessReview) error {
			review.Status.Allowed = review.Spec.Groups[0] == "admins" && review.Spec.ResourceAttributes.Subresource == "pods"
			return nil
		},
	}
	s, _ := server.server(t)
	for range 2 {
		for token, codes := range map[string]map[string]int{
			"a.admins": {"/pods": 200, "/metrics": 403},
			"a.guests": {"/pods": 403, "/metrics": 403},
			"b.admins": {"/pods": 200, "/metrics": 403},
		} {
			for path, want := range codes {
				if code := send(t.Context(), s, path, "Bearer "+token); code != want {
					t.Errorf("%s with %s: %d, want %d", path, token, code, want)
				}
			}
		}
	}
	// pods and metrics; those who may not see pods are asked for proxy, too.
	if tokens, accesses := server.asked(); tokens != 3 || accesses != 7 {
		t.Errorf("%d TokenReviews and %d SubjectAccessReviews, want 3 and 7", tokens, accesses)
	}
}

func TestNoTokenIsNoQuestion(t *testing.T) {
	server := askedServer{}
	s, _ := server.server(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer  ", "Basic eDp5", "Token x", "x"} {
		if code := send(t.Context(), s, "/pods", authorization); code != 401 {
			t.Errorf("%q: %d, want 401", authorization, code)
		}
	}
	if tokens, accesses := server.asked(); tokens != 0 || accesses != 0 {
		t.Errorf("%d TokenReviews and %d SubjectAccessReviews", tokens, accesses)
	}
}

// TestReviewsAreRetriedWithinCallTimeout: passing errors four times, others never.
func TestReviewsAreRetriedWithinCallTimeout(t *testing.T) {
	resource := schema.GroupResource{Resource: "reviews"}
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	always := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
	for name, c := range map[string]struct {
		fail     func(context.Context) error
		attempts int
		least    time.Duration
		most     time.Duration
	}{
		"500":               {always(apierrors.NewInternalError(errors.New("injected"))), 4, 950 * time.Millisecond, 1140 * time.Millisecond},
		"429":               {always(apierrors.NewTooManyRequestsError("injected")), 4, 950 * time.Millisecond, 1140 * time.Millisecond},
		"504":               {always(apierrors.NewTimeoutError("injected", 0)), 4, 950 * time.Millisecond, 1140 * time.Millisecond},
		"a reset":           {always(syscall.ECONNRESET), 4, 950 * time.Millisecond, 1140 * time.Millisecond},
		"403":               {always(errInjected), 1, 0, 0},
		"404":               {always(apierrors.NewNotFound(resource, "x")), 1, 0, 0},
		"a refused connect": {always(syscall.ECONNREFUSED), 1, 0, 0},
		"a hang":            {hang, 1, DefaultCallTimeout, DefaultCallTimeout},
		"a slow error": {func(ctx context.Context) error {
			select {
			case <-time.After(DefaultCallTimeout * 2 / 5):
				return apierrors.NewInternalError(errors.New("injected"))
			case <-ctx.Done():
				return ctx.Err()
			}
		}, 3, DefaultCallTimeout, DefaultCallTimeout},
	} {
		for _, of := range []string{"tokens", "permissions"} {
			t.Run(name+", "+of, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := askedServer{}
					if of == "tokens" {
						server.token = func(ctx context.Context, _ *authenticationv1.TokenReview) error { return c.fail(ctx) }
					} else {
						server.access = func(ctx context.Context, _ *authorizationv1.SubjectAccessReview) error { return c.fail(ctx) }
					}
					s, reported := server.server(t)
					began := time.Now()
					code := send(t.Context(), s, "/metrics", "Bearer x")
					took := time.Since(began)
					tokens, accesses := server.asked()
					attempts := max(tokens, accesses)
					if code != 503 || attempts != c.attempts || took < c.least || took > c.most || len(*reported) != 1 {
						t.Errorf("%d after %d attempts and %v, reported %v; want 503 after %d attempts and %v to %v", code, attempts, took, *reported, c.attempts, c.least, c.most)
					}
					server.token, server.access = nil, nil
					if code := send(t.Context(), s, "/metrics", "Bearer x"); code == 503 {
						t.Errorf("%d afterwards", code)
					}
				})
			})
		}
	}
}

// TestEqualQuestionsShareARequest which ends with the last of those who wait for it.
func TestEqualQuestionsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []error
		server := askedServer{token: func(ctx context.Context, review *authenticationv1.TokenReview) error {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			ended = append(ended, ctx.Err())
			return ctx.Err()
		}}
		s, _ := server.server(t)
		var wg sync.WaitGroup
		ask := func(ctx context.Context, token string, want int) {
			wg.Go(func() {
				if code := send(ctx, s, "/pods", "Bearer "+token); code != want {
					t.Errorf("%s: %d, want %d", token, code, want)
				}
			})
			synctest.Wait()
		}
		check := func(what string, wantTokens, wantAccesses int) {
			t.Helper()
			wg.Wait()
			if tokens, accesses := server.asked(); tokens != wantTokens || accesses != wantAccesses {
				t.Errorf("%s: %d TokenReviews and %d SubjectAccessReviews, want %d and %d", what, tokens, accesses, wantTokens, wantAccesses)
			}
		}
		gone, leave := context.WithCancel(t.Context())
		ask(gone, "shared", 503) // the first one goes, and the others don't lose their answer
		for range 20 {
			ask(t.Context(), "shared", 200)
		}
		leave()
		check("shared", 1, 1)

		gone, leave = context.WithCancel(t.Context())
		ask(gone, "left", 503)
		ask(gone, "left", 503)
		began := time.Now()
		leave()
		wg.Wait()
		if took := time.Since(began); took != 0 || len(ended) != 2 || !errors.Is(ended[1], context.Canceled) {
			t.Errorf("the request ended %v after its last asker: %v", took, ended)
		}
		ask(t.Context(), "left", 200)
		check("left", 3, 2)
	})
}

// TestAPanicOfTheClientEndsItsRequest: it is reported with its stack, and asked again.
func TestAPanicOfTheClientEndsItsRequest(t *testing.T) {
	panics := true
	server := askedServer{}
	server.token = func(context.Context, *authenticationv1.TokenReview) error {
		if panics {
			panic("injected")
		}
		return nil
	}
	s, reported := server.server(t)
	if code := send(t.Context(), s, "/pods", "Bearer x"); code != 503 || len(*reported) != 1 {
		t.Errorf("%d, reported %v", code, *reported)
	} else if failed, ok := errors.AsType[*PanicError]((*reported)[0]); !ok || failed.Value != "injected" || !bytes.Contains(failed.Stack, []byte("RoundTrip")) {
		t.Errorf("reported %v", (*reported)[0])
	}
	panics = false
	if code := send(t.Context(), s, "/pods", "Bearer x"); code != 200 {
		t.Errorf("%d afterwards", code)
	}
}

// TestInventedTokensAreCheckedAFewAtATime: each is a TokenReview, and anyone can send
// any number of them.
func TestInventedTokensAreCheckedAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := askedServer{token: func(ctx context.Context, _ *authenticationv1.TokenReview) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		s, reported := server.server(t)
		var wg sync.WaitGroup
		for i := range 5 * maxReviews / 2 {
			wg.Go(func() {
				if code := send(t.Context(), s, "/pods", "Bearer "+strconv.Itoa(i)); code != 503 {
					t.Errorf("%d: %d", i, code)
				}
			})
		}
		for _, want := range []int{maxReviews, 2 * maxReviews} {
			synctest.Wait()
			if tokens, _ := server.asked(); tokens > want {
				t.Errorf("%d tokens are checked, want at most %d", tokens, want)
			}
			time.Sleep(DefaultCallTimeout + time.Second)
		}
		wg.Wait()
		busy := 0
		for _, err := range *reported {
			if errors.Is(err, errBusy) {
				busy++
			}
		}
		if len(*reported) != 5*maxReviews/2 || busy == 0 {
			t.Errorf("%d reports, %d that others are checked", len(*reported), busy)
		}
		server.token = nil
		if code := send(t.Context(), s, "/pods", "Bearer next"); code != 200 {
			t.Errorf("%d afterwards", code)
		}
	})
}

// TestAnswersTakeBoundedMemory, however many tokens are sent and however long they are.
func TestAnswersTakeBoundedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, asked := newReviews[int](time.Second), 0
		ask := func(i int) {
			got, err := r.get(t.Context(), []byte(strconv.Itoa(i)), func(context.Context) (int, time.Duration, error) {
				asked++
				return i, time.Minute, nil
			})
			if got != i || err != nil {
				t.Fatalf("%d, %v, want %d", got, err, i)
			}
		}
		for i := range 3 * maxAnswers {
			ask(i)
			ask(0) // one that is used is kept
		}
		if kept := len(r.answers.Keys()); kept != maxAnswers || asked != 3*maxAnswers || len(r.open) != 0 || len(r.places.taken) != 0 {
			t.Errorf("%d answers are kept after %d questions, %d are open in %d places", kept, asked, len(r.open), len(r.places.taken))
		}
	})
}
