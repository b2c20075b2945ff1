// Command kueue runs Kueue's own controllers and scheduler for Jobs against the API server of $KUBECONFIG. It has no
// webhooks, which only check and complete what users write, so it needs no certificates.
package main

import (
	"context"
	"log"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	waiting "sigs.k8s.io/kueue/pkg/cache/queue"
	admitted "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/controller/jobs/job"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, kueue.AddToScheme, config.AddToScheme} {
		if err := add(types); err != nil {
			return err
		}
	}
	settings := config.Configuration{}
	types.Default(&settings)
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme: types, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	client, fields, preempted := manager.GetClient(), manager.GetFieldIndexer(), expectations.New()
	cache, requeuer := admitted.New(client), waiting.NewRequeuer()
	queues := waiting.NewManager(client, cache, requeuer, waiting.WithPreemptionExpectations(preempted))
	for _, index := range []func() error{
		func() error { return indexer.Setup(ctx, fields) },
		func() error { return job.SetupIndexes(ctx, fields) },
		func() error { return manager.Add(requeuer) },
	} {
		if err := index(); err != nil {
			return err
		}
	}
	if _, err := core.SetupControllers(manager, queues, cache, &settings, nil, preempted, nil); err != nil {
		return err
	}
	events := manager.GetEventRecorderFor("kueue")
	jobs, err := job.NewReconciler(
		ctx, client, fields, events, jobframework.WithCache(cache), jobframework.WithQueues(queues),
	)
	if err != nil {
		return err
	}
	if err := jobs.SetupWithManager(manager); err != nil {
		return err
	}
	jobframework.EnableIntegration(job.FrameworkName)
	admits := scheduler.New(queues, cache, client, events, scheduler.WithPreemptionExpectations(preempted))
	if err := manager.Add(admits); err != nil {
		return err
	}
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	return manager.Start(ctx)
}
