// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest/internal/codec"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Tokens of ServiceAccounts. The server remembers none: a token says what it is for, and is
// signed, as a real one.

// issuer is also the audience of a token that names none.
const issuer = "https://kubernetes.default.svc.cluster.local"

// claims is the content of a token.
type claims struct {
	Audiences []string `json:"aud"`
	Expires   int64    `json:"exp"`
	Issued    int64    `json:"iat"`
	Issuer    string   `json:"iss"`
	ID        string   `json:"jti"`
	For       boundTo  `json:"kubernetes.io"`
	Subject   string   `json:"sub"`
}

// boundTo is the part of a token that Kubernetes defines.
type boundTo struct {
	Namespace      string  `json:"namespace"`
	ServiceAccount bearer  `json:"serviceaccount"`
	Pod            *bearer `json:"pod,omitempty"`
	Secret         *bearer `json:"secret,omitempty"`
	Node           *bearer `json:"node,omitempty"`
}

// bearer names one object.
type bearer struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// sign returns the token of some claims.
func sign(c claims) string {
	body, err := json.Marshal(c)
	if err != nil {
		panic("apitest: " + err.Error())
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","kid":"apitest"}`)) + "." + base64.RawURLEncoding.EncodeToString(body)
	mac := hmac.New(sha256.New, []byte("apitest"))
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// errBearer is the error of a token that is none.
var errBearer = errors.New("invalid bearer token")

// unsign returns the claims of a token.
func unsign(token string) (c claims, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errBearer
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(body, &c) != nil || sign(c) != token {
		return c, errBearer
	}
	return c, nil
}

// requestToken is serviceaccounts/token.
func requestToken(c *Call) (*Answer, error) {
	obj, err := c.decodeAs(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	if err != nil {
		return nil, err
	}
	tr := obj.(*authenticationv1.TokenRequest)
	c.s.Store.Lock()
	defer c.s.Store.Unlock()
	if node, ok := c.r.User.Node(); ok {
		if err := c.s.restrictToken(c, node, tr); err != nil {
			return nil, err
		}
	}
	it := c.table().Items[c.key()]
	if it == nil {
		return nil, apierrors.NewNotFound(c.resource(), c.r.Name)
	}
	account := it.Obj.(*corev1.ServiceAccount)
	if len(tr.Spec.Audiences) == 0 {
		tr.Spec.Audiences = []string{issuer}
	}
	if tr.Spec.ExpirationSeconds == nil {
		tr.Spec.ExpirationSeconds = ptr.To[int64](60 * 60)
	}
	if errs := validateTokenRequest(tr); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: authenticationv1.GroupName, Kind: "TokenRequest"}, "", errs)
	}
	now := time.Now()
	expires := now.Add(time.Duration(*tr.Spec.ExpirationSeconds) * time.Second)
	claim := claims{Audiences: tr.Spec.Audiences, Expires: expires.Unix(), Issued: now.Unix(), Issuer: issuer, ID: string(c.s.NewUID()),
		Subject: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		For:     boundTo{Namespace: account.Namespace, ServiceAccount: bearer{account.Name, account.UID}}}
	if ref := tr.Spec.BoundObjectRef; ref != nil {
		if err := c.bindToken(&claim.For, ref); err != nil {
			return nil, err
		}
	}
	tr.ObjectMeta = metav1.ObjectMeta{Name: account.Name, Namespace: account.Namespace, CreationTimestamp: metav1.NewTime(now).Rfc3339Copy()}
	tr.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	tr.Status = authenticationv1.TokenRequestStatus{Token: sign(claim), ExpirationTimestamp: metav1.NewTime(expires).Rfc3339Copy()}
	return &Answer{Code: http.StatusCreated, ContentType: c.accept.Name, Body: c.accept.Bytes(tr)}, nil
}

func validateTokenRequest(tr *authenticationv1.TokenRequest) (errs field.ErrorList) {
	path := field.NewPath("spec", "expirationSeconds")
	switch s := *tr.Spec.ExpirationSeconds; {
	case s < 10*60:
		errs = append(errs, field.Invalid(path, s, "may not specify a duration less than 10 minutes"))
	case s > 1<<32:
		errs = append(errs, field.Invalid(path, s, "may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

// bindToken binds a token to the object that it may not outlive. The store must be locked.
func (c *Call) bindToken(k *boundTo, ref *authenticationv1.BoundObjectReference) error {
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	resource := map[string]string{"Pod": "pods", "Secret": "secrets"}[gvk.Kind]
	if gvk.Group != "" || resource == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	it := c.s.Store.Named[resource].Items[store.Key{Namespace: c.r.Namespace, Name: ref.Name}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, ref.Name)
	}
	b := &bearer{ref.Name, codec.MetaOf(it.Obj).GetUID()}
	if pod, ok := it.Obj.(*corev1.Pod); ok {
		if pod.Spec.ServiceAccountName != c.r.Name {
			return apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", c.r.Name))
		}
		k.Pod = b
		if pod.Spec.NodeName != "" {
			k.Node = &bearer{Name: pod.Spec.NodeName}
			if n := c.s.Store.Named["nodes"].Items[store.Key{Name: pod.Spec.NodeName}]; n != nil {
				k.Node.UID = codec.MetaOf(n.Obj).GetUID()
			}
		}
	} else {
		k.Secret = b
	}
	if ref.UID != "" && ref.UID != b.UID {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID))
	}
	return nil
}

// restrictToken is NodeRestriction: a node may request tokens for its own pods only.
// The store must be locked.
func (s *Server) restrictToken(c *Call, node string, tr *authenticationv1.TokenRequest) error {
	ref := tr.Spec.BoundObjectRef
	switch {
	case ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "":
		return c.forbidden(c.r.Name, "node requested token not bound to a pod")
	case ref.UID == "":
		return c.forbidden(c.r.Name, "node requested token with a pod binding without a uid")
	}
	it := s.Store.Named["pods"].Items[store.Key{Namespace: c.r.Namespace, Name: ref.Name}]
	if it == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pod"}, ref.Name) // the plugin asks its informer
	}
	switch pod := it.Obj.(*corev1.Pod); {
	case pod.UID != ref.UID:
		return c.forbidden(c.r.Name, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != node:
		return c.forbidden(c.r.Name, "node requested token bound to a pod scheduled on a different node")
	}
	return nil
}

// reviewToken answers a TokenReview.
func (c *Call) reviewToken(review *authenticationv1.TokenReview) error {
	if review.Spec.Token == "" {
		return apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	user, audiences, err := c.s.authenticate(review.Spec.Token, review.Spec.Audiences)
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: err == nil, User: user, Audiences: audiences}
	if err != nil {
		review.Status.Error = err.Error()
	}
	return nil
}

// authenticate returns the user of a token, and which of the audiences it is for.
func (s *Server) authenticate(token string, audiences []string) (user authenticationv1.UserInfo, common []string, err error) {
	c, err := unsign(token)
	if err != nil {
		return user, nil, err
	}
	refuse := func(format string, args ...any) (authenticationv1.UserInfo, []string, error) {
		return authenticationv1.UserInfo{}, nil, fmt.Errorf("[%w, %w]", errBearer, fmt.Errorf(format, args...))
	}
	if len(audiences) == 0 {
		audiences = []string{issuer}
	}
	for _, a := range audiences {
		if slices.Contains(c.Audiences, a) {
			common = append(common, a)
		}
	}
	if len(common) == 0 {
		return refuse("token audiences %q is invalid for the target audiences %q", c.Audiences, audiences)
	}
	if time.Now().Unix() >= c.Expires {
		return refuse("service account token has expired")
	}
	s.Store.Lock()
	defer s.Store.Unlock()
	lives := func(resource string, b *bearer) bool {
		if b == nil {
			return true
		}
		it := s.Store.Named[resource].Items[store.Key{Namespace: c.For.Namespace, Name: b.Name}]
		return it != nil && codec.MetaOf(it.Obj).GetUID() == b.UID
	}
	switch {
	case !lives("serviceaccounts", &c.For.ServiceAccount):
		return refuse("service account %s/%s has been deleted", c.For.Namespace, c.For.ServiceAccount.Name)
	case !lives("pods", c.For.Pod), !lives("secrets", c.For.Secret):
		return refuse("service account token has been invalidated")
	}
	user = authenticationv1.UserInfo{Username: c.Subject, UID: string(c.For.ServiceAccount.UID),
		Groups: []string{request.GroupServiceAccounts, request.GroupServiceAccounts + ":" + c.For.Namespace, request.GroupAuthenticated},
		Extra:  map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"JTI=" + c.ID}}}
	if p := c.For.Pod; p != nil {
		user.Extra["authentication.kubernetes.io/pod-name"] = authenticationv1.ExtraValue{p.Name}
		user.Extra["authentication.kubernetes.io/pod-uid"] = authenticationv1.ExtraValue{string(p.UID)}
	}
	if n := c.For.Node; n != nil {
		user.Extra["authentication.kubernetes.io/node-name"] = authenticationv1.ExtraValue{n.Name}
		if n.UID != "" {
			user.Extra["authentication.kubernetes.io/node-uid"] = authenticationv1.ExtraValue{string(n.UID)}
		}
	}
	return user, common, nil
}
