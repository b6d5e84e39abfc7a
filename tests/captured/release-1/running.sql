BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
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
	nodes TEXT NOT NULL, 
	interruption TEXT DEFAULT '' NOT NULL, 
	checkpoint TEXT DEFAULT '{}' NOT NULL, 
	gpu_seconds DOUBLE DEFAULT '0' NOT NULL, 
	upload_pending INTEGER DEFAULT '0' NOT NULL, 
	simulated INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (job_id, number), 
	CONSTRAINT uq_attempts_token UNIQUE (token), 
	CONSTRAINT fk_attempts_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
INSERT INTO "attempts" VALUES('training-j94a2km8r',1,'training-j94a2km8r-1','local','training-j94a2km8r-1',@T+0.0172@,@T+0.1982@,NULL,'','host (none)','@HOST@','','{}',0.0,0,0);
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
INSERT INTO "history" VALUES('training-j94a2km8r',1,@T+0.0000@,'PENDING',0,'progress','','000');
INSERT INTO "history" VALUES('training-j94a2km8r',2,@T+0.0172@,'DEPLOYING',1,'progress','','000');
INSERT INTO "history" VALUES('training-j94a2km8r',3,@T+0.1982@,'QUEUED',1,'progress','','000');
INSERT INTO "history" VALUES('training-j94a2km8r',4,@T+0.8961@,'DOWNLOADING',1,'progress','','000');
INSERT INTO "history" VALUES('training-j94a2km8r',5,@T+0.9165@,'PROCESSING',1,'progress','','000');
CREATE TABLE incidents (
	job_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	episode TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	noticed_at DOUBLE NOT NULL, 
	code TEXT NOT NULL, 
	message TEXT NOT NULL, 
	nodes TEXT NOT NULL, 
	learner INTEGER NOT NULL, 
	evidence TEXT NOT NULL, 
	lost_gpu_s DOUBLE NOT NULL, 
	CONSTRAINT pk_incidents PRIMARY KEY (job_id, attempt, episode), 
	CONSTRAINT fk_incidents_job_id FOREIGN KEY(job_id) REFERENCES jobs (id)
);
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	uid BIGINT NOT NULL, 
	user_name TEXT NOT NULL, 
	name TEXT NOT NULL, 
	spec TEXT NOT NULL, 
	state TEXT NOT NULL, 
	requested_action TEXT NOT NULL, 
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
	deploy_tries INTEGER NOT NULL, 
	overrides TEXT DEFAULT '{}' NOT NULL, 
	spent TEXT DEFAULT '{}' NOT NULL, 
	array_id TEXT DEFAULT '' NOT NULL, 
	array_index INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_uid_submit_key UNIQUE (uid, submit_key)
);
INSERT INTO "jobs" VALUES('training-j94a2km8r',0,'root','loop','{"name":"loop","framework":{"name":"custom","version":"python-numpy","command":"python3 train.py --steps 120 --pause 0.1","image_tag":"","image_location":null},"description":"A line through noisy points, in plain Python","version":"1.0","resources":{"learners":1,"cpus":1.0,"gpus":0.0,"gpu_type":"","memory_bytes":268435456,"storage_bytes":null,"gres":{}},"data_stores":[],"metrics":{"type":"","image_tag":"","in":"","line_lookahead":4,"event_types":[],"groups":{}},"batch":{"time_s":10,"profile":"","partition":"","account":"","qos":"","constraint":"","reservation":"","priority":"","preemptible":null,"placement":"node","network":"host","egress":[],"env":{},"secrets":{},"checkpoint":{"signal":"USR2","grace_s":30,"lead_s":null,"shared":false,"saved_by":"all"},"hang_s":1800,"retry":{"timeouts":null,"preemptions":null,"node_failures":null,"failures":null,"gpu_hours":null},"restart":"job","staging":"inline","mount":null,"roles":{},"array":"","sweep":[],"elastic":{},"notify":{"mail_user":"","events":[],"webhook":""},"slurm_args":[],"kubernetes":{},"nodelist":"","exclude":"","dependency":"","begin":"","hold":false,"requeue":null,"signal":"","comment":"","output":"","slurm_environment":false},"base_dir":"@BASE@","umask":18,"gid":0,"manifest_text":"# A plain Python loop that saves a checkpoint when asked. Submit:  ffdl-submit manifest.yml model\nname: loop\ndescription: A line through noisy points, in plain Python\nversion: \"1.0\"\ncpus: 1\ngpus: 0\nmemory: 256MiB\nlearners: 1\nframework:\n  name: custom\n  version: python-numpy\n  command: python3 train.py --steps 120 --pause 0.1\nbatch:\n  time: 10s\n  network: host\n  checkpoint:\n    signal: USR2       # the default\n    grace_s: 30        # a step takes 0.1 s, saving takes less\n","sources":{"name":"manifest:2","description":"manifest:3","version":"manifest:4","cpus":"manifest:5","gpus":"manifest:6","learners":"manifest:8","memory":"manifest:7","framework.name":"manifest:10","framework.version":"manifest:11","framework.command":"manifest:12","batch.time":"manifest:14","batch.network":"manifest:15","batch.checkpoint":"manifest:16"},"element":null}','PROCESSING','none','local',1,'training-j94a2km8r-1',6,@T+0.0000@,@T+1.4884@,NULL,'000','',NULL,NULL,'','@HOST@','host (none)','@BASE@/jobs/jobs/training-j94a2km8r/attempt-1/results','80137b40e416ed2fd8f156a18185831943c06209b92996107a211f82c06b42c2',NULL,'[]','[]','52451e3c09b64e469a2e4785eede0f32','','',0.0,0.0,0,'{}','{}','',0);
CREATE TABLE leases (
	name TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	token TEXT NOT NULL, 
	until DOUBLE NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('tree','fee90abecd4946dc @BASE@/jobs','',0.0);
INSERT INTO "leases" VALUES('watcher','@HOST@:@BASE@/state','5af7049a83c6069a09cf9e05058abdd3',@T+29.4401@);
INSERT INTO "leases" VALUES('notices','@HOST@:@BASE@/state','cefec24c93ccb9b319e3b583918a3c18',@T+29.4465@);
CREATE TABLE notices (
	id TEXT NOT NULL, 
	job_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	episode TEXT NOT NULL, 
	channel TEXT NOT NULL, 
	address TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	next_try_at DOUBLE NOT NULL, 
	tries INTEGER NOT NULL, 
	sent_at DOUBLE, 
	failure TEXT NOT NULL, 
	PRIMARY KEY (id), 
	CONSTRAINT fk_notices_job_id FOREIGN KEY(job_id) REFERENCES jobs (id), 
	CONSTRAINT uq_notices_of UNIQUE (job_id, attempt, episode, channel, address)
);
CREATE TABLE schema_revisions (
	revision TEXT NOT NULL, 
	release TEXT NOT NULL, 
	at DOUBLE NOT NULL, 
	PRIMARY KEY (revision)
);
INSERT INTO "schema_revisions" VALUES('0001','0.1.0',@T-0.6179@);
CREATE INDEX ix_jobs_uid_submitted_at ON jobs (uid, submitted_at);
CREATE INDEX ix_jobs_submitted_at ON jobs (submitted_at);
CREATE INDEX ix_jobs_state_next_try_at ON jobs (state, next_try_at);
CREATE INDEX ix_jobs_array_id_array_index ON jobs (array_id, array_index);
CREATE INDEX ix_attempts_upload_pending ON attempts (upload_pending);
CREATE INDEX ix_incidents_noticed_at ON incidents (noticed_at);
CREATE INDEX ix_incidents_at ON incidents (at);
CREATE INDEX ix_notices_sent_at_next_try_at ON notices (sent_at, next_try_at);
COMMIT;
