// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/mounts"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// configMapVolume returns a pod with the volume v of ConfigMap cm, and an API server
// with a function that sets the ConfigMap's data.
func configMapVolume(t *testing.T) (*corev1.Pod, *podenv.Resolver, func(map[string]string)) {
	api := apitest.New(apitest.Options{})
	core := api.Client(apitest.User{}).CoreV1()
	resolver, err := podenv.New(podenv.Config{ConfigMaps: core, Secrets: core})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "1"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, DefaultMode: new(int32(0o640)),
	}}}}
	return pod, resolver, func(data map[string]string) {
		api.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cm"}, Data: data})
	}
}

// fillData reads the volume v of a pod and writes it.
func fillData(t *testing.T, resolved *podenv.Pod, pod *corev1.Pod, dir string) {
	t.Helper()
	files, err := resolved.Volume(t.Context(), "v")
	if err == nil {
		err = writeData(dataPath(dir, &pod.Spec.Volumes[0]), files, fsGroup(pod))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDataVolumeIsReplacedAtOnce(t *testing.T) {
	pod, resolver, put := configMapVolume(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	volume := volumePath(dir, "v")
	fill := func() {
		t.Helper()
		fillData(t, resolver.Pod(pod), pod, dir)
	}
	put(map[string]string{"key": "one", "gone": "soon"})
	fill()
	mounted, err := os.Stat(volume)
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(filepath.Join(volume, "key"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if info, err := open.Stat(); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v, want 0640", info.Mode(), err)
	}
	version, err := os.Readlink(filepath.Join(volume, dataLink))
	if err != nil {
		t.Fatal(err)
	}
	fill()
	if again, err := os.Readlink(filepath.Join(volume, dataLink)); err != nil || again != version {
		t.Errorf("the same content became another version: %q, then %q, %v", version, again, err)
	}
	// A crash in the middle of an exchange leaves these.
	if err := os.Symlink("nowhere", filepath.Join(volume, dataLink+".new")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(volume, versionPrefix+"crash"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(map[string]string{"key": "two", "new": "three"})
	fill()
	if got, err := os.ReadFile(filepath.Join(volume, "key")); err != nil || string(got) != "two" {
		t.Errorf("%q, %v", got, err)
	}
	old := make([]byte, 10)
	if n, err := open.Read(old); err != nil || string(old[:n]) != "one" {
		t.Errorf("a process that has it open reads %q, %v", old[:n], err)
	}
	var names []string
	entries, err := os.ReadDir(volume)
	for _, e := range entries {
		names = append(names, strings.TrimRight(e.Name(), "0123456789"))
	}
	if want := []string{dataLink, versionPrefix, "key", "new"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the volume has %q, want %q, %v", names, want, err)
	}
	if info, err := os.Stat(volume); err != nil || !os.SameFile(info, mounted) {
		t.Errorf("the directory that containers have mounted is another one: %v", err)
	}
}

// A process that dies between the exchange of the version and the links leaves them as
// they were.
func TestALaterRefreshMakesTheLinks(t *testing.T) {
	pod, resolver, put := configMapVolume(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	volume := volumePath(dir, "v")
	put(map[string]string{"key": "one", "new": "two"})
	for range 2 {
		fillData(t, resolver.Pod(pod), pod, dir)
		if got, err := os.ReadFile(filepath.Join(volume, "new")); err != nil || string(got) != "two" {
			t.Errorf("the key has %q, %v", got, err)
		}
		if _, err := os.Lstat(filepath.Join(volume, "gone")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a key that is gone: %v", err)
		}
		if err := os.Rename(filepath.Join(volume, "new"), filepath.Join(volume, "gone")); err != nil {
			t.Fatal(err)
		}
	}
}

// A subPath without a key is a directory, until the next refresh. It keeps no key away.
func TestTheDirectoryOfASubPathGivesWayToTheKey(t *testing.T) {
	pod, resolver, put := configMapVolume(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	put(map[string]string{"key": "one"})
	fillData(t, resolver.Pod(pod), pod, dir)
	volume := volumePath(dir, "v")
	for _, sub := range []string{"new", "other/new"} {
		if _, _, err := below(volume, sub); err != nil {
			t.Fatal(err)
		}
	}
	put(map[string]string{"key": "one", "new": "two"})
	fillData(t, resolver.Pod(pod), pod, dir)
	if got, err := os.ReadFile(filepath.Join(volume, "new")); err != nil || string(got) != "two" {
		t.Errorf("the key has %q, %v", got, err)
	}
}

// If a process may mount and the one before might not, the containers that run still have the
// Secrets on the disk mounted: those must stay fresh.
func TestSecretsOnTheDiskAreRefreshedThere(t *testing.T) {
	spec, resolver, put := configMapVolume(t)
	dir := t.TempDir()
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	spec.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: new(true)}},
	}}}
	put(map[string]string{"key": "one"})
	fillData(t, resolver.Pod(spec), spec, dir) // as without a mount
	put(map[string]string{"key": "two"})
	resolved := resolver.Pod(spec)
	files, err := resolved.Volume(t.Context(), "v")
	if err != nil {
		t.Fatal(err)
	}
	next := &pod{ctx: t.Context(), dir: dir, memory: &podenv.Memory{}}
	for name, call := range map[string]func() error{
		"start":   func() error { return next.fillAbsent(t.Context(), resolved, spec) },
		"refresh": func() error { return next.replaceData(spec, &spec.Spec.Volumes[0], files) },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(volumePath(dir, "v"), "key")); err != nil || string(got) != "two" {
		t.Errorf("a container that runs reads %q, %v", got, err)
	}
}

func TestVolumeOfAnObjectWithoutTheKeyIsAnError(t *testing.T) {
	pod, resolver, put := configMapVolume(t)
	dir := t.TempDir()
	put(map[string]string{"key": "one"})
	pod.Spec.Volumes[0].ConfigMap.Items = []corev1.KeyToPath{{Key: "absent", Path: "a"}}
	if err := makeVolumes(t.Context(), resolver.Pod(pod), pod, dir); !errors.Is(err, podenv.ErrMissing) {
		t.Errorf("%v, want ErrMissing", err)
	}
}

func TestEmptyDirCanBeWrittenByAll(t *testing.T) {
	dir := t.TempDir()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
	if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, resolver, _ := configMapVolume(t)
	if err := makeVolumes(t.Context(), resolver.Pod(pod), pod, dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(volumePath(dir, "v")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, %v, want 0777", info.Mode(), err)
	}
}

func TestMemoryVolumeHasItsSizeLimit(t *testing.T) {
	dir := t.TempDir()
	path := volumePath(dir, "v")
	if err := os.MkdirAll(path, 0o777); err != nil {
		t.Fatal(err)
	}
	limit := resource.MustParse("1Mi")
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit},
	}}}}}
	for range 2 { // the second Provider finds it mounted
		if err := restoreEmptyDirs(pod, dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := mounts.UnmountBelow(dir); err != nil {
			t.Error(err)
		}
	})
	points, err := mounts.Below(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(points) == 0 {
		t.Skip("this process may not mount")
	}
	if len(points) != 1 {
		t.Errorf("mounts %q, want one", points)
	}
	if err := os.WriteFile(filepath.Join(path, "small"), make([]byte, 1<<19), 0o600); err != nil {
		t.Errorf("half the limit: %v", err)
	}
	if err := os.WriteFile(filepath.Join(path, "large"), make([]byte, 1<<20), 0o600); err == nil {
		t.Error("more than the limit could be written")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("mode %v, %v, want 0777", info.Mode(), err)
	}
	if err := removeTree(filepath.Join(dir, "volumes")); err != nil {
		t.Errorf("a mounted volume can't be deleted: %v", err)
	}
}

// A directory that is made for a subPath has the mode of its volume, so that new files
// have the group of the volume, too.
func TestASubPathHasTheModeOfItsVolume(t *testing.T) {
	volume := filepath.Join(t.TempDir(), "v")
	if err := makeShared(volume, 0o777|fs.ModeSticky, os.Getegid()); err != nil {
		t.Fatal(err)
	}
	base, rel, err := below(volume, "a/b")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(base, rel))
	if want := fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o777; err != nil || info.Mode() != want {
		t.Errorf("mode %v, %v, want %v", info.Mode(), err, want)
	}
}

func TestSubPaths(t *testing.T) {
	dir := t.TempDir()
	volume := volumePath(dir, "v")
	if err := os.MkdirAll(filepath.Join(volume, "there"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(volume, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"out": "../..", "away": "/etc", "in": "there"} {
		if err := os.Symlink(target, filepath.Join(volume, link)); err != nil {
			t.Fatal(err)
		}
	}
	env := &podenv.Environment{Vars: []podenv.Var{{Name: "NAME", Value: "there"}, {Name: "UP", Value: ".."}, {Name: "ROOT", Value: "/etc"}, {Name: "LONG", Value: strings.Repeat("x/", 1<<6)}, {Name: "EMPTY"}}}
	for name, tc := range map[string]struct {
		mount corev1.VolumeMount
		want  string // below the volume, or a part of the error
		fails bool
	}{
		"none":                    {corev1.VolumeMount{}, "", false},
		"a directory":             {corev1.VolumeMount{SubPath: "there"}, "there", false},
		"a file":                  {corev1.VolumeMount{SubPath: "file"}, "file", false},
		"one that is made":        {corev1.VolumeMount{SubPath: "a/b"}, "a/b", false},
		"a link inside":           {corev1.VolumeMount{SubPath: "in"}, "there", false},
		"a link upwards":          {corev1.VolumeMount{SubPath: "out"}, "escapes", true},
		"a link away":             {corev1.VolumeMount{SubPath: "away"}, "escapes", true},
		"through a link":          {corev1.VolumeMount{SubPath: "away/made"}, "escapes", true},
		"upwards":                 {corev1.VolumeMount{SubPath: "a/../../b"}, "must not contain '..'", true},
		"absolute":                {corev1.VolumeMount{SubPath: "/etc"}, "must not be an absolute path", true},
		"an expression":           {corev1.VolumeMount{SubPathExpr: "x-$(NAME)"}, "x-there", false},
		"an unknown variable":     {corev1.VolumeMount{SubPathExpr: "$(OTHER)"}, "no variable OTHER", true},
		"a variable upwards":      {corev1.VolumeMount{SubPathExpr: "$(UP)"}, "must not contain '..'", true},
		"no shorter one":          {corev1.VolumeMount{SubPathExpr: strings.Repeat("$(EMPTY)", 1<<10) + strings.Repeat("./", 2045) + "$(NAME)"}, "there", false},
		"a long one":              {corev1.VolumeMount{SubPath: strings.Repeat("l/", 2049)}, "longer than 4096 bytes", true},
		"a long variable":         {corev1.VolumeMount{SubPathExpr: strings.Repeat("$(LONG)", 33)}, "longer than 4096 bytes", true},
		"a variable with a slash": {corev1.VolumeMount{SubPathExpr: "$(ROOT)"}, "must not be an absolute path", true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.mount.Name, tc.mount.MountPath = "v", "/data"
			pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
			mounts, err := mountsOf(pod, &corev1.Container{VolumeMounts: []corev1.VolumeMount{tc.mount}}, env, dir, false)
			if tc.fails {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, %v, want an error with %q", mounts, err, tc.want)
				}
				return
			}
			if err != nil || len(mounts) != 1 || mounts[0].HostPath != filepath.Join(volume, tc.want) {
				t.Fatalf("%+v, %v, want %q", mounts, err, tc.want)
			}
		})
	}
	for _, long := range []string{"x", "l"} {
		if _, err := os.Stat(filepath.Join(volume, long)); err == nil {
			t.Error("a path that is too long was made in part")
		}
	}
	if info, err := os.Stat(filepath.Join(volume, "a/b")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("a directory that was made: %v, %v, want the mode of the volume", info.Mode(), err)
	}
}

// A version of a volume is dropped when its content changes. A container has what it was
// started with by subPath, as with the kubelet.
func TestASubPathOfAConfigMapOutlivesItsVersion(t *testing.T) {
	pod, resolver, put := configMapVolume(t)
	pod.Spec.Volumes[0].ConfigMap.Items = []corev1.KeyToPath{{Key: "key", Path: "key"}, {Key: "key", Path: "etc/key", Mode: new(int32(0o444))}}
	c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/file", SubPath: "key"}, {Name: "v", MountPath: "/etc", SubPath: "etc"}}}
	for _, bind := range []bool{false, true} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "volumes"), 0o700); err != nil {
			t.Fatal(err)
		}
		read := func(mounts []Mount) (all []string) {
			for i, name := range []string{"", "key"} {
				data, err := os.ReadFile(filepath.Join(mounts[i].HostPath, name))
				all = append(all, fmt.Sprint(string(data), err))
			}
			return all
		}
		start := func() []Mount {
			mounts, err := mountsOf(pod, c, &podenv.Environment{}, dir, bind)
			if err != nil || len(mounts) != 2 {
				t.Fatalf("%v, %v", mounts, err)
			}
			if path := mounts[0].HostPath; !strings.HasPrefix(path, filepath.Join(dir, "volumes", pinned)+"/") {
				t.Errorf("it is pinned at %s, which is not below %s", path, dir)
			}
			slices.SortFunc(mounts, func(a, b Mount) int { return -strings.Compare(a.ContainerPath, b.ContainerPath) })
			return mounts
		}
		put(map[string]string{"key": "one"})
		fillData(t, resolver.Pod(pod), pod, dir)
		mounts := start()
		if info, err := os.Stat(filepath.Join(mounts[1].HostPath, "key")); err != nil || info.Mode().Perm() != 0o444 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		put(map[string]string{"key": "two"})
		fillData(t, resolver.Pod(pod), pod, dir)
		if got, want := read(mounts), []string{"one<nil>", "one<nil>"}; !slices.Equal(got, want) {
			t.Errorf("bind %v: the container has %q, want %q", bind, got, want)
		}
		if got, want := read(start()), []string{"two<nil>", "two<nil>"}; !slices.Equal(got, want) {
			t.Errorf("bind %v: the next run has %q, want %q", bind, got, want)
		}
	}
}

func TestMountsHaveAnOrderAndModes(t *testing.T) {
	pod, _, _ := configMapVolume(t)
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}})
	bidirectional, recursive := corev1.MountPropagationBidirectional, corev1.RecursiveReadOnlyEnabled
	mounts, err := mountsOf(pod, &corev1.Container{VolumeMounts: []corev1.VolumeMount{
		{Name: "h", MountPath: "/a/b", MountPropagation: &bidirectional},
		{Name: "h", MountPath: "/c/", ReadOnly: true, RecursiveReadOnly: &recursive},
		{Name: "v", MountPath: "/a"},
	}}, &podenv.Environment{}, "/pod", false)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{
		{Volume: "h", HostPath: "/srv", ContainerPath: "/c/", ReadOnly: true, RecursiveReadOnly: true},
		{Volume: "v", HostPath: "/pod/volumes/v", ContainerPath: "/a", ReadOnly: true},
		{Volume: "h", HostPath: "/srv", ContainerPath: "/a/b", Propagation: bidirectional},
	}
	if !slices.Equal(mounts, want) {
		t.Errorf("mounts %+v, want %+v", mounts, want)
	}
	if _, err := mountsOf(pod, &corev1.Container{VolumeMounts: []corev1.VolumeMount{{Name: "x"}}}, &podenv.Environment{}, "/pod", false); err == nil {
		t.Error("a mount of no volume is no error")
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		kind corev1.HostPathType
		path string
		ok   bool
	}{
		"unset":                      {corev1.HostPathUnset, "/absent", true},
		"a directory":                {corev1.HostPathDirectory, dir, true},
		"a directory that is a file": {corev1.HostPathDirectory, file, false},
		"a directory that is absent": {corev1.HostPathDirectory, dir + "/x", false},
		"a directory to create":      {corev1.HostPathDirectoryOrCreate, dir + "/new/dir", true},
		"one that is a file":         {corev1.HostPathDirectoryOrCreate, file, false},
		"a file":                     {corev1.HostPathFile, file, true},
		"a file that is a directory": {corev1.HostPathFile, dir, false},
		"a file to create":           {corev1.HostPathFileOrCreate, dir + "/newfile", true},
		"one without its directory":  {corev1.HostPathFileOrCreate, dir + "/no/newfile", false},
		"a socket":                   {corev1.HostPathSocket, file, false},
		"a character device":         {corev1.HostPathCharDev, "/dev/null", true},
		"a block device":             {corev1.HostPathBlockDev, "/dev/null", false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkHostPath(&corev1.HostPathVolumeSource{Path: tc.path, Type: &tc.kind}); (err == nil) != tc.ok {
				t.Errorf("%v, want success %v", err, tc.ok)
			}
		})
	}
}

func TestReadFileStaysInTheVolume(t *testing.T) {
	root := t.TempDir()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	volume := volumePath(store{root}.pod("1"), "v")
	if err := os.MkdirAll(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "env"), []byte("A=1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	read := ReadFile(root)
	if data, err := read(t.Context(), pod, "v", "env"); err != nil || string(data) != "A=1" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := read(t.Context(), pod, "v", "absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
	if data, err := read(t.Context(), pod, "v", "link"); err == nil {
		t.Errorf("a link out of the volume: %q", data)
	}
}

func TestCredentialsAreRenewedInTime(t *testing.T) {
	token := func(seconds *int64) corev1.VolumeProjection {
		return corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: seconds}}
	}
	certificate := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}
	volume := func(sources ...corev1.VolumeProjection) *corev1.Volume {
		return &corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
	}
	config := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}
	for name, tc := range map[string]struct {
		volume      *corev1.Volume
		credentials bool
		shortest    time.Duration
	}{
		"the shortest of tokens": {volume(config, token(nil), token(new(int64(1800))), token(new(int64(7200)))), true, 30 * time.Minute},
		"a certificate":          {volume(certificate), true, time.Hour},
		"neither":                {volume(config), false, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hasCredentials(tc.volume); got != tc.credentials {
				t.Errorf("has credentials: %v", got)
			}
			if got := shortestLife(tc.volume); got != tc.shortest {
				t.Errorf("at least %v, want %v", got, tc.shortest)
			}
		})
	}
	for name, tc := range map[string]struct {
		renew time.Time
		want  time.Duration
	}{
		"within a minute":                   {now.Add(24 * time.Second), 24 * time.Second},
		"later, and read for changes":       {now.Add(24 * time.Minute), volumeRefresh},
		"without credentials, or a failure": {time.Time{}, volumeRefresh},
		"not at once with a clock far back": {now.Add(-time.Hour), minRefresh},
	} {
		t.Run(name, func(t *testing.T) {
			if got := nextRead(tc.renew, now).Sub(now); got != tc.want {
				t.Errorf("read after %v, want %v", got, tc.want)
			}
		})
	}
}
