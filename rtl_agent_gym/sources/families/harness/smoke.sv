module smoke;
    reg clock = 0, reset = <RESET_LEVEL>, enable = <ENABLE_LEVEL>;
    reg [63:0] data = 64'bx, last;
    reg known, still = 1, moves = 0;
    <MODULE> dut (.<CLOCK>(clock), .<RESET>(reset), .<ENABLE>(enable));
    integer i;
    initial begin
        force dut.<DATA> = data;
        #1 clock = 1; #1 clock = 0;
        known = ^dut.<OUTPUT> !== 1'bx;
        reset = !reset;
        for (i = 0; i < 64; i = i + 1) begin
            if (i == 32) enable = !enable;
            data = i % 4 == 3 ? i[2] : i % 4 == 2 ? ~64'd0 - i[2] : {$urandom, $urandom};
            last = dut.<OUTPUT>;
            #1 clock = 1; #1 clock = 0;
            if (i < 32) moves = moves || last !== dut.<OUTPUT>;
            else still = still && last === dut.<OUTPUT>;
        end
        if (!known) $display("FAIL: reset");
        else if (moves && still) $display("PASS");
        else $display("FAIL: enable");
        $finish(0);
    end
endmodule
