`timescale 1ns / 1ps

module axil_irq_registers_tb;
    reg         aclk = 0;
    reg         aresetn = 0;
    reg  [7:0]  awaddr = 0;
    reg         awvalid = 0;
    wire        awready;
    reg  [31:0] wdata = 0;
    reg  [3:0]  wstrb = 0;
    reg         wvalid = 0;
    wire        wready;
    wire [1:0]  bresp;
    wire        bvalid;
    reg         bready = 0;
    reg  [7:0]  araddr = 0;
    reg         arvalid = 0;
    wire        arready;
    wire [31:0] rdata;
    wire [1:0]  rresp;
    wire        rvalid;
    reg         rready = 0;
    reg  [7:0]  events = 0;
    wire [7:0]  ctrl;
    wire        irq;
    integer     errors = 0;
    reg         address_taken, data_taken;

    axil_irq_registers dut (
        .aclk(aclk), .aresetn(aresetn), .awaddr(awaddr), .awvalid(awvalid), .awready(awready), .wdata(wdata), .wstrb(wstrb),
        .wvalid(wvalid), .wready(wready), .bresp(bresp), .bvalid(bvalid), .bready(bready), .araddr(araddr), .arvalid(arvalid),
        .arready(arready), .rdata(rdata), .rresp(rresp), .rvalid(rvalid), .rready(rready), .events(events), .ctrl(ctrl), .irq(irq)
    );

    always #5 aclk = ~aclk;

    // Address and data together; the response is taken at once.
    task write(input [7:0] address, input [31:0] data, input [3:0] strobe, input [1:0] want);
        begin
            awaddr = address;
            wdata = data;
            wstrb = strobe;
            awvalid = 1;
            wvalid = 1;
            bready = 1;
            while (awvalid || wvalid) begin
                #4;
                address_taken = awvalid && awready;
                data_taken = wvalid && wready;
                @(negedge aclk);
                if (address_taken) awvalid = 0;
                if (data_taken) wvalid = 0;
            end
            while (!bvalid) @(negedge aclk);
            if (bresp !== want) begin
                errors = errors + 1;
                $display("FAIL: write %h: bresp=%b, expected %b", address, bresp, want);
            end
            @(negedge aclk);
            bready = 0;
        end
    endtask

    task read(input [7:0] address, input [31:0] want_data, input [1:0] want);
        begin
            araddr = address;
            arvalid = 1;
            rready = 1;
            while (arvalid) begin
                #4;
                address_taken = arready;
                @(negedge aclk);
                if (address_taken) arvalid = 0;
            end
            while (!rvalid) @(negedge aclk);
            if (rdata !== want_data || rresp !== want) begin
                errors = errors + 1;
                $display("FAIL: read %h: rdata=%h rresp=%b, expected %h %b", address, rdata, rresp, want_data, want);
            end
            @(negedge aclk);
            rready = 0;
        end
    endtask

    initial begin
        repeat (3) @(negedge aclk);
        aresetn = 1;
        read(8'h00, 32'h52544C31, 2'b00);
        write(8'h04, 32'hffff_ffa5, 4'b1111, 2'b00);
        read(8'h04, 32'h0000_00a5, 2'b00);
        write(8'h08, 32'h1122_3344, 4'b0101, 2'b00);
        read(8'h08, 32'h0022_0044, 2'b00);
        write(8'h40, 32'h0000_0001, 4'b1111, 2'b10);
        read(8'h40, 32'h0000_0000, 2'b10);
        write(8'h10, 32'h0000_0002, 4'b1111, 2'b00);
        events = 8'h03;
        @(negedge aclk);
        events = 8'h00;
        read(8'h0c, 32'h0000_0003, 2'b00);
        if (irq !== 1) begin
            errors = errors + 1;
            $display("FAIL: irq=%b, expected 1", irq);
        end
        write(8'h0c, 32'h0000_0002, 4'b1111, 2'b00);
        read(8'h0c, 32'h0000_0001, 2'b00);
        read(8'h14, 32'h0000_0004, 2'b00);
        if (irq !== 0 || ctrl !== 8'ha5) begin
            errors = errors + 1;
            $display("FAIL: irq=%b ctrl=%h, expected 0 a5", irq, ctrl);
        end
        if (errors == 0) $display("PASS");
        $finish;
    end

    initial begin
        #100000;
        $display("FAIL: no answer within 100 us");
        $finish;
    end
endmodule
