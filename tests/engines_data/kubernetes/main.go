// Command kt is a whole Kubernetes control plane for tests in one program: `kt PART [FLAGS]` runs the part as its own
// program would. The parts share most of their code, so one program takes a fifth of the space and of the build.
package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	nodestage "sigs.k8s.io/kwok/kustomize/stage/node/fast"
	leasestage "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podstage "sigs.k8s.io/kwok/kustomize/stage/pod/fast"
	kwokconfig "sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	kwoklog "sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

var parts = map[string]func() error{
	"etcd":                    func() error { etcdmain.Main(os.Args); return nil },
	"kube-apiserver":          func() error { os.Exit(cli.Run(apiserver.NewAPIServerCommand())); return nil },
	"kube-controller-manager": func() error { os.Exit(cli.Run(controllers.NewControllerManagerCommand())); return nil },
	"kube-scheduler":          func() error { os.Exit(cli.Run(scheduler.NewSchedulerCommand())); return nil },
	"kubectl":                 func() error { return cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()) },
	"kwok":                    runKwok,
	"kwok-stages":             printStages,
	"key-pair":                writeKeyPair,
}

func main() {
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kt etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl|kwok|kwok-stages|key-pair")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if name == "kwok" || name == "kubectl" {
		// Both bring a --version of their own, and a library has registered one for all.
		pflag.CommandLine = pflag.NewFlagSet(name, pflag.ExitOnError)
	}
	if err := parts[name](); err != nil {
		fmt.Fprintln(os.Stderr, "kt", name+":", err)
		os.Exit(1)
	}
}

// runKwok runs the program that plays the kubelets of nodes that do not exist.
func runKwok() error {
	flags := pflag.NewFlagSet("global", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := kwoklog.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := kwokconfig.InitFlags(ctx, flags)
	if err != nil {
		return err
	}
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	return command.ExecuteContext(ctx)
}

// printStages prints what kwok does with nodes and pods, for its --config.
func printStages() error {
	stages := []string{nodestage.DefaultNodeInit, leasestage.DefaultNodeHeartbeatWithLease,
		podstage.DefaultPodReady, podstage.DefaultPodComplete, podstage.DefaultPodDelete}
	fmt.Println(strings.Join(stages, "\n---\n"))
	return nil
}

// writeKeyPair writes the keys that service accounts' tokens are signed and checked with: `kt key-pair KEY PUBLIC`.
func writeKeyPair() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: kt key-pair KEY PUBLIC")
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(os.Args[1], private, 0o600); err != nil {
		return err
	}
	return os.WriteFile(os.Args[2], pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644)
}
