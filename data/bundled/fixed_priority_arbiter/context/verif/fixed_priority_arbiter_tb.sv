`timescale 1ns / 1ps

module fixed_priority_arbiter_tb;
    reg        clk = 0;
    reg        reset = 1;
    reg  [7:0] req = 8'hff;
    reg  [7:0] priority_override = 8'h00;
    wire [7:0] grant;
    wire       valid;
    wire [2:0] grant_index;
    integer    errors = 0;

    fixed_priority_arbiter dut (
        .clk(clk),
        .reset(reset),
        .req(req),
        .priority_override(priority_override),
        .grant(grant),
        .valid(valid),
        .grant_index(grant_index)
    );

    always #5 clk = ~clk;

    task check(input [7:0] want_grant, input want_valid, input [2:0] want_index);
        begin
            @(negedge clk);
            if (grant !== want_grant || valid !== want_valid || grant_index !== want_index) begin
                errors = errors + 1;
                $display("FAIL: reset=%b req=%b override=%b: grant=%b valid=%b index=%0d, expected %b %b %0d", reset, req,
                         priority_override, grant, valid, grant_index, want_grant, want_valid, want_index);
            end
        end
    endtask

    initial begin
        @(negedge clk);
        check(8'b0000_0000, 0, 0);
        reset = 0;
        req = 8'b0010_1000;
        check(8'b0000_1000, 1, 3);
        req = 8'b1000_0001;
        check(8'b0000_0001, 1, 0);
        priority_override = 8'b0001_0000;
        check(8'b0001_0000, 1, 4);
        priority_override = 8'b1100_0000;
        check(8'b0100_0000, 1, 6);
        req = 8'b0000_0000;
        priority_override = 8'b0000_0000;
        check(8'b0000_0000, 0, 0);
        if (errors == 0) $display("PASS");
        $finish;
    end
endmodule
