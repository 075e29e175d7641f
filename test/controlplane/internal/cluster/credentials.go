// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kubewright/kubewright/test/controlplane/internal/kubeconfig"
)

// Client returns the credentials of a user in groups: a client certificate.
func (c *Cluster) Client(user string, groups ...string) (kubeconfig.Credentials, error) {
	pair, err := c.ca.Client(user, groups...)
	return kubeconfig.Credentials{User: user, Server: c.layout.url(APIServer), CA: c.ca.Cert, Cert: pair.Cert, Key: pair.Key}, err
}

// Node returns the credentials that a kubelet on the node called name would have.
func (c *Cluster) Node(name string) (kubeconfig.Credentials, error) {
	return c.Client("system:node:"+name, "system:nodes")
}

// tokenSeconds is the lifetime of ServiceAccount tokens: longer than any test or interactive session.
const tokenSeconds = 24 * 60 * 60

// ServiceAccount returns a ServiceAccount's credentials: a token from the TokenRequest API. It creates the
// ServiceAccount if it does not exist. The namespace must exist.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (kubeconfig.Credentials, error) {
	creds := kubeconfig.Credentials{
		User:   fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name),
		Server: c.layout.url(APIServer),
		CA:     c.ca.Cert,
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/serviceaccounts"
	_, err := c.post(ctx, path, map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": name},
	})
	var status *statusError
	if err != nil && !(errors.As(err, &status) && status.code == http.StatusConflict) {
		return creds, err
	}
	body, err := c.post(ctx, path+"/"+url.PathEscape(name)+"/token", map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{"expirationSeconds": tokenSeconds},
	})
	if err != nil {
		return creds, err
	}
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return creds, err
	}
	creds.Token = answer.Status.Token
	return creds, nil
}

// post posts an object to the API server as the admin and returns the answer.
func (c *Cluster) post(ctx context.Context, path string, object any) ([]byte, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.layout.url(APIServer)+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return c.do(req)
}
