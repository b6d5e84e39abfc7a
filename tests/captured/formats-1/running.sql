BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE attempts (
	job_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	token TEXT NOT NULL, 
	backend TEXT NOT NULL, 
	native_id TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	submitted_at DOUBLE, 
	ended_at DOUBLE, 
	outcome_code TEXT NOT NULL, 
	network TEXT NOT NULL, 
	nodes TEXT NOT NULL, interruption TEXT DEFAULT '' NOT NULL, checkpoint TEXT DEFAULT '{}' NOT NULL, gpu_seconds DOUBLE DEFAULT '0' NOT NULL, owed INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (job_id, number), 
	CONSTRAINT uq_attempts_token UNIQUE (token), 
	CONSTRAINT fk_attempts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "attempts" VALUES('training-53fesprzc',1,'training-53fesprzc-1','local','training-53fesprzc-1',@T+0.0794@,@T+0.6442@,NULL,'','host','@HOST@','','{}',0.0,0);
CREATE TABLE history (
	job_id TEXT NOT NULL, 
	seq INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	state TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	cause TEXT NOT NULL, 
	message TEXT NOT NULL, 
	error_code TEXT NOT NULL, 
	PRIMARY KEY (job_id, seq), 
	CONSTRAINT fk_history_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "history" VALUES('training-53fesprzc',1,@T+0.0000@,'PENDING',0,'progress','','000');
INSERT INTO "history" VALUES('training-53fesprzc',2,@T+0.0794@,'DEPLOYING',1,'progress','','000');
INSERT INTO "history" VALUES('training-53fesprzc',3,@T+0.6442@,'QUEUED',1,'progress','','000');
INSERT INTO "history" VALUES('training-53fesprzc',4,@T+1.1672@,'DOWNLOADING',1,'progress','','000');
INSERT INTO "history" VALUES('training-53fesprzc',5,@T+1.1921@,'PROCESSING',1,'progress','','000');
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	uid BIGINT NOT NULL, 
	user_name TEXT NOT NULL, 
	name TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	state TEXT NOT NULL, 
	wish TEXT NOT NULL, 
	backend TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	native_id TEXT NOT NULL, 
	revision INTEGER NOT NULL, 
	submitted_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	error_code TEXT NOT NULL, 
	message TEXT NOT NULL, 
	exit_code INTEGER, 
	exit_signal INTEGER, 
	pending_reason TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	network TEXT NOT NULL, 
	results TEXT NOT NULL, 
	model_digest TEXT NOT NULL, 
	uncertain_since DOUBLE, 
	warnings TEXT NOT NULL, 
	log_tail TEXT NOT NULL, 
	submit_key TEXT, 
	lease_owner TEXT NOT NULL, 
	lease_token TEXT NOT NULL, 
	lease_until DOUBLE NOT NULL, 
	next_try_at DOUBLE NOT NULL, 
	deploy_tries INTEGER NOT NULL, overrides TEXT DEFAULT '{}' NOT NULL, spent TEXT DEFAULT '{}' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_uid_submit_key UNIQUE (uid, submit_key)
);
INSERT INTO "jobs" VALUES('training-53fesprzc',0,'root','loop','{"name":"loop","framework":{"name":"custom","version":"python-numpy","command":"python3 train.py --steps 120 --pause 0.1","image_tag":"","image_location":null},"description":"A line through noisy points, in plain Python","version":"1.0","resources":{"learners":1,"cpus":1.0,"gpus":0.0,"gpu_type":"","memory_bytes":268435456,"storage_bytes":null,"gres":{}},"data_stores":[],"metrics":{"type":"","image_tag":"","in":"","line_lookahead":4,"event_types":[],"groups":{}},"batch":{"time_s":10,"profile":"","partition":"","account":"","qos":"","constraint":"","reservation":"","priority":"","preemptible":null,"placement":"node","network":"host","egress":[],"env":{},"secrets":{},"checkpoint":{"signal":"USR2","grace_s":30,"lead_s":null,"shared":false},"retry":{"timeouts":null,"preemptions":null,"node_failures":null,"failures":null,"gpu_hours":null},"roles":{},"array":"","elastic":{},"notify":{"mail_user":"","events":[],"webhook":""},"slurm_args":[],"kubernetes":{},"nodelist":"","exclude":"","dependency":"","begin":"","hold":false,"requeue":null,"signal":"","comment":"","output":""},"base_dir":"@BASE@","manifest_text":"# A plain Python loop that saves a checkpoint when asked. Submit:  ffdl-submit manifest.yml model\nname: loop\ndescription: A line through noisy points, in plain Python\nversion: \"1.0\"\ncpus: 1\ngpus: 0\nmemory: 256MiB\nlearners: 1\nframework:\n  name: custom\n  version: python-numpy\n  command: python3 train.py --steps 120 --pause 0.1\nbatch:\n  time: 10s\n  network: host\n  checkpoint:\n    signal: USR2       # the default\n    grace_s: 30        # a step takes 0.1 s, saving takes less\n","sources":{"name":"manifest:2","description":"manifest:3","version":"manifest:4","cpus":"manifest:5","gpus":"manifest:6","learners":"manifest:8","memory":"manifest:7","framework.name":"manifest:10","framework.version":"manifest:11","framework.command":"manifest:12","batch.time":"manifest:14","batch.network":"manifest:15","batch.checkpoint":"manifest:16"}}','PROCESSING','none','local',1,'training-53fesprzc-1',5,@T+0.0000@,@T+1.2968@,NULL,'000','',NULL,NULL,'','@HOST@','host','@BASE@/jobs/jobs/training-53fesprzc/attempt-1/results','80137b40e416ed2fd8f156a18185831943c06209b92996107a211f82c06b42c2',NULL,'[]','[]','85b44938c9864d2ab8205bd87c695e12','','',0.0,0.0,0,'{}','{}');
CREATE TABLE leases (
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	token TEXT NOT NULL, 
	until DOUBLE NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('watcher','@HOST@:@BASE@/state','6e212846607a669f067b075c88e5a34e',@T+27.0284@);
CREATE INDEX ix_jobs_uid_submitted_at ON jobs (uid, submitted_at);
CREATE INDEX ix_jobs_submitted_at ON jobs (submitted_at);
CREATE INDEX ix_jobs_state_next_try_at ON jobs (state, next_try_at);
CREATE INDEX ix_attempts_owed ON attempts (owed);
COMMIT;
